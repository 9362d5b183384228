// Dreamer's convolutions of 4 x 4 in steps of two, with layer normalisation over channels and SiLU between them, forward and backward.
//
// One picture after the other goes all the way, so that what a stage makes is in the cache when the next one takes it. A picture of
// H x W pixels of C channels lies in memory as (H + 2, W + 2, C), with a rim of zeros. A stage ties fine pictures to coarse ones of
// half the side, and takes three products, each a sum over pixels that are neighbours in memory:
//
//   down    a coarse pixel is a sum over four rows of four fine pixels: the encoder's way, and the decoder's way back
//   up      two fine pixels side by side are a sum over two rows of two coarse pixels: the decoder's way, and the encoder's way back
//   outer   the gradient of the weight is the sum, over coarse pixels, of each times four rows of four fine pixels: for both
//
// SIZES is the height, width and channels of pixels, and the channels after every stage.

// ---- pictures

template <int H_, int W_, int C_> struct Picture {
  static constexpr int H = H_, W = W_, C = C_, PITCH = (W + 2) * C, PIXELS = H * W, NUMBERS = PIXELS * C;
  static_assert(H > 0 && W > 0 && C > 0, "no picture");
  float data[(H + 2) * PITCH];

  float* row(int y) { return data + (y + 1) * PITCH + C; }
  const float* row(int y) const { return data + (y + 1) * PITCH + C; }

  // from and to a picture without a rim
  void take(const float* plain) {
    for (int y = 0; y < H; y++) std::memcpy(row(y), plain + y * W * C, 4 * W * C);
  }
  void give(float* plain) const {
    for (int y = 0; y < H; y++) std::memcpy(plain + y * W * C, row(y), 4 * W * C);
  }
};

// ---- stages

template <class Fine, class Coarse> struct Stage {
  static_assert((int)Fine::H == 2 * Coarse::H && (int)Fine::W == 2 * Coarse::W, "half the side");
  static constexpr int F = Fine::C, C = Coarse::C;
  // Where a coarse pixel would fill half a vector, two are taken at a time, with six columns of fine ones, of which each has use for four.
  static constexpr int PAIR = 2 * C <= WIDE && Coarse::W % 2 == 0 ? 2 : 1, CHUNK = (2 * PAIR + 2) * F;
  Weight<4, CHUNK, PAIR * C> downwards;
  Weight<2, 2 * C, 2 * F> upwards[2];  // to even rows of the fine picture and to odd ones, the rim counted
  float sums[4][CHUNK][Sums<PAIR * C>::WIDTH];

  void take(const float* weight) {  // (C, F, 4, 4), as torch has it for both directions
    auto at = [&](int c, int f, int y, int x) { return weight[((c * F + f) * 4 + y) * 4 + x]; };
    downwards.pack([&](int r, int j, int n) {
      const int x = j / F - n / C * 2;
      return x >= 0 && x < 4 ? at(n % C, j % F, r, x) : 0.0f;
    });
    for (int odd = 0; odd < 2; odd++)
      upwards[odd].pack([&](int r, int j, int n) { return at(j % C, n % F, odd + 2 * (1 - r), n / F + 2 * (1 - j / C)); });
  }

  void give(float* gradient) const {
    for (int c = 0; c < C; c++)
      for (int f = 0; f < F; f++)
        for (int y = 0; y < 4; y++)
          for (int x = 0; x < 4; x++, gradient++) {
            *gradient = 0;
            for (int p = 0; p < PAIR; p++) *gradient += sums[y][(2 * p + x) * F + f][p * C + c];
          }
  }

  void down(const Fine& fine, Coarse& coarse) const {
    for (int y = 0; y < Coarse::H; y++)
      downwards.template along<Coarse::W / PAIR, 2 * PAIR * F, Fine::PITCH>(fine.data + 2 * y * Fine::PITCH, coarse.row(y));
  }

  // the rim of the fine picture becomes anything
  void up(const Coarse& coarse, Fine& fine) const {
    for (int q = 1; q <= Fine::H; q++)
      upwards[q % 2].template along<Coarse::W + 1, C, Coarse::PITCH>(coarse.data + q / 2 * Coarse::PITCH,
                                                                     fine.data + q * Fine::PITCH);
  }

  void outer(const Fine& fine, const Coarse& coarse) {
    using S = Sums<PAIR * C>;
    typedef typename S::V V;
    for (int r = 0; r < 4; r++)
      for (int t = 0; t < S::TILES; t++)
        in_parts<CHUNK, S::MOST>([&](int first, auto size) {
          constexpr int M = decltype(size)::value;
          V of[M][S::TILE];
          auto each = [&](auto f) {
#pragma GCC unroll 32
            for (int m = 0; m < M; m++)
#pragma GCC unroll 32
              for (int v = 0; v < S::TILE; v++) f(of[m][v], &sums[r][first + m][(t * S::TILE + v) * S::L]);
          };
          each([](V& v, float* sum) { v = load<V>(sum); });
          for (int y = 0; y < Coarse::H; y++) {  // a vector may reach over a pixel, into the rim at most
            const float *x = fine.data + (2 * y + r) * Fine::PITCH + first, *g = coarse.row(y) + t * S::TILE * S::L;
            for (int k = 0; k < Coarse::W; k += PAIR, x += 2 * PAIR * F, g += PAIR * C) accumulate<1>(of, x, g);
          }
          each([](V& v, float* sum) { store<V>(sum, v); });
        });
  }
};

// ---- pixels, as torch has them: (channels, height, width), bytes or floats up to 255

// WIDE pixels lie as C vectors, number by number, or channel by channel. From channels to vector K, and from numbers to channel K,
// taking from one vector after another what belongs there.
template <int C, int K, int FROM = 0, int... I>
static inline Wide numbers(const Wide* channels, std::integer_sequence<int, I...> i, Wide v = Wide{}) {
  if constexpr (FROM == C) return v;
  else {
    v = shuffled<((K * WIDE + I) % C == FROM ? WIDE + (K * WIDE + I) / C : I)...>(v, channels[FROM]);
    return numbers<C, K, FROM + 1>(channels, i, v);
  }
}
template <int C, int K, int FROM = 0, int... I>
static inline Wide channel(const Wide* numbers, std::integer_sequence<int, I...> i, Wide v = Wide{}) {
  if constexpr (FROM == C) return v;
  else {
    v = shuffled<((I * C + K) / WIDE == FROM ? WIDE + (I * C + K) % WIDE : I)...>(v, numbers[FROM]);
    return channel<C, K, FROM + 1>(numbers, i, v);
  }
}

template <int C> struct Channels {
  Wide of[C];
  template <int... K> void give(float* numbers, std::integer_sequence<int, K...>) const {
    (store(numbers + K * WIDE, ::numbers<C, K>(of, Lanes<WIDE>())), ...);
  }
  template <int... K> void take(const float* numbers, std::integer_sequence<int, K...>) {
    const Wide all[] = {load<Wide>(numbers + K * WIDE)...};
    ((of[K] = channel<C, K>(all, Lanes<WIDE>())), ...);
  }
};

struct Pixels {
  const void* data;
  bool bytes;

  // a vector of numbers up to 1
  template <class P> Wide at(long picture, int c, int y, int x) const {
    const long place = picture * P::NUMBERS + (c * P::H + y) * P::W + x;
    if (!bytes) return load<Wide>((const float*)data + place) * (1.0f / 255);
    Of<WIDE>::Bytes small;
    std::memcpy(&small, (const uint8_t*)data + place, sizeof small);
    const auto larger = __builtin_convertvector(small, Of<WIDE>::Shorts);  // step by step: gcc would go byte by byte
    return __builtin_convertvector(__builtin_convertvector(larger, Of<WIDE>::Bits), Wide) * (1.0f / 255);
  }
};

// ---- the encoder

template <int H, int W, int... C> struct Encoder;

template <int H, int W, int C> struct Encoder<H, W, C> {  // the end: tokens
  using Here = Picture<H, W, C>;
  static constexpr int NUMBERS = 0, Z = 0, SCALES = 0, TOKENS = Here::NUMBERS;
  void take(const float*, float) {}
  void give(float*) const {}
  void outer(const Here&) {}
  void forward(const Here& here, float*, float*, float* tokens) { here.give(tokens); }
  void backward(Here& slope, const float*, const float*, const float* tokens) { slope.take(tokens); }
};

template <int H, int W, int F, int C, int... More> struct Encoder<H, W, F, C, More...> {
  using Here = Picture<H, W, F>;
  using There = Picture<H / 2, W / 2, C>;
  using Next = Encoder<H / 2, W / 2, C, More...>;
  static constexpr int WEIGHT = 16 * F * C, OWN = WEIGHT + 2 * C, NUMBERS = OWN + Next::NUMBERS;
  static constexpr int Z = There::NUMBERS + Next::Z, SCALES = There::PIXELS + Next::SCALES, TOKENS = Next::TOKENS;
  Stage<Here, There> stage;
  Norm<C, W / 2> norm;
  Next next;
  There before, after;             // the norm
  There slope_before, slope_after;  // the gradient there

  void take(const float* numbers, float eps) {
    stage.take(numbers), norm.take(numbers + WEIGHT, eps), next.take(numbers + OWN, eps);
  }
  void give(float* gradient) const { stage.give(gradient), norm.give(gradient + WEIGHT), next.give(gradient + OWN); }

  void forward(const Here& here, float* z, float* scales, float* tokens) {
    stage.down(here, before);
    norm.forward(There::H, before.row(0), There::PITCH, z, scales, after.row(0), There::PITCH);
    next.forward(after, z + There::NUMBERS, scales + There::PIXELS, tokens);
  }

  // up to the convolution; what went into it the caller knows, who then calls ``outer``
  void back(const float* z, const float* scales, const float* tokens) {
    next.backward(slope_after, z + There::NUMBERS, scales + There::PIXELS, tokens);
    norm.backward(There::H, slope_after.row(0), There::PITCH, z, scales, slope_before.row(0), after.row(0));
    next.outer(after);
  }
  void outer(const Here& here) { stage.outer(here, slope_before); }
  void backward(Here& slope, const float* z, const float* scales, const float* tokens) {
    back(z, scales, tokens);
    stage.up(slope_before, slope);
  }
};

// ---- the decoder

template <int H, int W, int... C> struct Decoder;

template <int H, int W, int C> struct Decoder<H, W, C> {  // the beginning
  using Here = Picture<H, W, C>;
  static constexpr int NUMBERS = 0, INPUTS = Here::NUMBERS;
  Here after, slope_after;
  void take(const float*, float) {}
  void give(float*) const {}
  void forward(const float* inputs) { after.take(inputs); }
  void backward(float* slopes) { slope_after.give(slopes); }
};

template <int H, int W, int F, int C, int... More> struct Decoder<H, W, F, C, More...> {
  using Here = Picture<H, W, F>;
  using Next = Decoder<H / 2, W / 2, C, More...>;
  static constexpr int WEIGHT = 16 * F * C, OWN = WEIGHT + 2 * F, NUMBERS = OWN + Next::NUMBERS, INPUTS = Next::INPUTS;
  Stage<Here, typename Next::Here> stage;
  Norm<F, W> norm;
  Next next;
  Here before, after;              // the norm
  Here slope_before, slope_after;  // the gradient there
  float z[Here::NUMBERS], scales[Here::PIXELS];

  void take(const float* numbers, float eps) {
    stage.take(numbers), norm.take(numbers + WEIGHT, eps), next.take(numbers + OWN, eps);
  }
  void give(float* gradient) const { stage.give(gradient), norm.give(gradient + WEIGHT), next.give(gradient + OWN); }

  void forward(const float* inputs) {
    next.forward(inputs);
    stage.up(next.after, before);
    norm.forward(H, before.row(0), Here::PITCH, z, scales, after.row(0), Here::PITCH);
  }
  void backward(float* slopes) {
    norm.backward(H, slope_after.row(0), Here::PITCH, z, scales, slope_before.row(0), nullptr);
    stage.outer(slope_before, next.after);
    stage.down(slope_before, next.slope_after);
    next.backward(slopes);
  }
};

// The last stage makes pixels, with a bias and no norm, and compares them.
template <int H, int W, int F, int C, int... More> struct Painter {
  using Here = Picture<H, W, F>;
  using Next = Decoder<H / 2, W / 2, C, More...>;
  static constexpr int WEIGHT = 16 * F * C, OWN = WEIGHT + F, NUMBERS = OWN + Next::NUMBERS, INPUTS = Next::INPUTS;
  Stage<Here, typename Next::Here> stage;
  Next next;
  Here painted, slope;
  float bias[F], of_bias[F];

  void take(const float* numbers, float eps) {
    stage.take(numbers), next.take(numbers + OWN, eps);
    std::memcpy(bias, numbers + WEIGHT, sizeof bias);
  }
  void give(float* gradient) const {
    stage.give(gradient), next.give(gradient + OWN);
    std::memcpy(gradient + WEIGHT, of_bias, sizeof of_bias);
  }

  // the squared error of what is painted, and the gradient of ``weight`` times it
  float compare(Pixels target, long which, float weight) {
    Channels<F> pixels;
    Wide squares = {}, sums[F] = {};
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x += WIDE) {
        pixels.take(painted.row(y) + x * F, Lanes<F>());
        for (int c = 0; c < F; c++) {
          const Wide error = pixels.of[c] + bias[c] - target.at<Here>(which, c, y, x);
          squares += error * error, sums[c] += error;
          pixels.of[c] = 2 * weight * error;
        }
        pixels.give(slope.row(y) + x * F, Lanes<F>());
      }
    for (int c = 0; c < F; c++) of_bias[c] += 2 * weight * total<WIDE>(sums[c])[0];
    return total<WIDE>(squares)[0];
  }

  float learn(const float* inputs, Pixels target, long which, float weight, float* slopes) {
    next.forward(inputs);
    stage.up(next.after, painted);
    const float error = compare(target, which, weight);
    stage.outer(slope, next.after);
    stage.down(slope, next.slope_after);
    next.backward(slopes);
    return error;
  }
};

// ---- what torch calls

using TheEncoder = Encoder<SIZES>;
using ThePainter = Painter<SIZES>;

static void centre(Pixels pixels, long which, TheEncoder::Here& here) {
  using P = TheEncoder::Here;
  Channels<P::C> channels;
  for (int y = 0; y < P::H; y++)
    for (int x = 0; x < P::W; x += WIDE) {
      for (int c = 0; c < P::C; c++) channels.of[c] = pixels.at<P>(which, c, y, x) - 0.5f;
      channels.give(here.row(y) + x * P::C, Lanes<P::C>());
    }
}

// how many numbers there are: kept of a picture (two kinds), its tokens, and lanes of a vector
extern "C" void sizes(long* result) {
  const long all[] = {TheEncoder::Z, TheEncoder::SCALES, TheEncoder::TOKENS, WIDE};
  std::memcpy(result, all, sizeof all);
}

extern "C" void encode(const void* pixels, int bytes, const float* numbers, float eps, float* z, float* scales, float* tokens, long n,
                       int threads) {
  using E = TheEncoder;
  in_threads(n, threads, [&](int, long first, long last) {
    auto encoder = std::make_unique<E>();
    auto here = std::make_unique<E::Here>();
    encoder->take(numbers, eps);
    for (long i = first; i < last; i++) {
      centre({pixels, bytes != 0}, i, *here);
      encoder->forward(*here, z + i * E::Z, scales + i * E::SCALES, tokens + i * E::TOKENS);
    }
  });
}

extern "C" void encode_back(const void* pixels, int bytes, const float* numbers, const float* z, const float* scales,
                            const float* tokens, float* gradients, long n, int threads) {
  using E = TheEncoder;
  in_threads(n, threads, [&](int k, long first, long last) {
    auto encoder = std::make_unique<E>();
    auto here = std::make_unique<E::Here>();
    encoder->take(numbers, 0);
    for (long i = first; i < last; i++) {
      encoder->back(z + i * E::Z, scales + i * E::SCALES, tokens + i * E::TOKENS);
      centre({pixels, bytes != 0}, i, *here);
      encoder->outer(*here);
    }
    encoder->give(gradients + (long)k * E::NUMBERS);
  });
}

extern "C" void paint(const float* inputs, const void* target, int bytes, const float* numbers, float eps, float weight, float* errors,
                      float* slopes, float* gradients, long n, int threads) {
  using P = ThePainter;
  in_threads(n, threads, [&](int k, long first, long last) {
    auto painter = std::make_unique<P>();
    painter->take(numbers, eps);
    for (long i = first; i < last; i++)
      errors[i] = painter->learn(inputs + i * P::INPUTS, {target, bytes != 0}, i, weight, slopes + i * P::INPUTS);
    painter->give(gradients + (long)k * P::NUMBERS);
  });
}
