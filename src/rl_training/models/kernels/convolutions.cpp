// The convolutions of Dreamer's encoder and decoder: 4 x 4, stride 2, with layer normalisation over channels and SiLU
// between them; forward and backward pass.
//
// Images go through all stages one by one, so that the output of a stage is in the cache when the next one reads it.
// An image of H x W pixels and C channels lies in memory as (H + 2, W + 2, C), padded with zeros. A stage connects a
// fine image with a coarse one of half the side, and needs three products, each a sum over pixels that are neighbours
// in memory:
//
//   down    a coarse pixel is a sum over 4 x 4 fine pixels: the encoder's forward pass, and the decoder's backward pass
//   up      two fine pixels side by side are a sum over 2 x 2 coarse pixels: the decoder's forward pass, and the
//           encoder's backward pass
//   outer   the gradient of the weight is the sum, over coarse pixels, of each times 4 x 4 fine pixels: for both
//
// SIZES is height, width and channels of the pixels, and the channels after every stage. The arguments of the
// functions that Python calls are declared in border.py, which defines the *_ARGUMENTS.

// ---- images

template <int H_, int W_, int C_> struct Image {
  static constexpr int H = H_, W = W_, C = C_, PITCH = (W + 2) * C, PIXELS = H * W, VALUES = PIXELS * C;
  static_assert(H > 0 && W > 0 && C > 0, "empty image");
  float data[(H + 2) * PITCH];

  float* row(int y) { return data + (y + 1) * PITCH + C; }
  const float* row(int y) const { return data + (y + 1) * PITCH + C; }

  // copies from and to an image without padding
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
  // Where a coarse pixel would fill half a vector, two are computed at a time, from six columns of fine pixels, of
  // which each uses four.
  static constexpr int PAIR = 2 * C <= WIDE && Coarse::W % 2 == 0 ? 2 : 1, CHUNK = (2 * PAIR + 2) * F;
  Weight<4, CHUNK, PAIR * C> downwards;
  Weight<2, 2 * C, 2 * F> upwards[2];  // to even and to odd rows of the fine image, counted with its padding
  float sums[4][CHUNK][Sums<PAIR * C>::WIDTH];

  void take(const float* weight) {  // (C, F, 4, 4), as torch has it for both directions
    auto at = [&](int c, int f, int y, int x) { return weight[((c * F + f) * 4 + y) * 4 + x]; };
    downwards.pack([&](int r, int j, int n) {
      const int x = j / F - n / C * 2;
      return x >= 0 && x < 4 ? at(n % C, j % F, r, x) : 0.0f;
    });
    for (int odd = 0; odd < 2; odd++)
      upwards[odd].pack(
          [&](int r, int j, int n) { return at(j % C, n % F, odd + 2 * (1 - r), n / F + 2 * (1 - j / C)); });
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
      downwards.template along<Coarse::W / PAIR, 2 * PAIR * F, Fine::PITCH>(fine.data + 2 * y * Fine::PITCH,
                                                                            coarse.row(y));
  }

  // overwrites the padding of the fine image
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
          for (int y = 0; y < Coarse::H; y++) {  // a vector may reach beyond a pixel, at most into the padding
            const float *x = fine.data + (2 * y + r) * Fine::PITCH + first, *g = coarse.row(y) + t * S::TILE * S::L;
            for (int k = 0; k < Coarse::W; k += PAIR, x += 2 * PAIR * F, g += PAIR * C) accumulate<1>(of, x, g);
          }
          each([](V& v, float* sum) { store<V>(sum, v); });
        });
  }
};

// ---- pixels, as torch has them: (channels, height, width), bytes or floats up to 255

// WIDE pixels are C vectors, either interleaved (channels last) or planar (a vector for each channel). ``interleaved``
// makes vector K of the first from the second, ``planar`` vector K of the second from the first, by a shuffle for
// every vector that they read.
template <int C, int K, int FROM = 0, int... I>
static inline Wide interleaved(const Wide* channels, std::integer_sequence<int, I...> i, Wide v = Wide{}) {
  if constexpr (FROM == C) return v;
  else {
    v = shuffled<((K * WIDE + I) % C == FROM ? WIDE + (K * WIDE + I) / C : I)...>(v, channels[FROM]);
    return interleaved<C, K, FROM + 1>(channels, i, v);
  }
}
template <int C, int K, int FROM = 0, int... I>
static inline Wide planar(const Wide* vectors, std::integer_sequence<int, I...> i, Wide v = Wide{}) {
  if constexpr (FROM == C) return v;
  else {
    v = shuffled<((I * C + K) / WIDE == FROM ? WIDE + (I * C + K) % WIDE : I)...>(v, vectors[FROM]);
    return planar<C, K, FROM + 1>(vectors, i, v);
  }
}

template <int C> struct Channels {
  Wide of[C];
  template <int... K> void give(float* pixels, std::integer_sequence<int, K...>) const {
    (store(pixels + K * WIDE, interleaved<C, K>(of, Lanes<WIDE>())), ...);
  }
  template <int... K> void take(const float* pixels, std::integer_sequence<int, K...>) {
    const Wide all[] = {load<Wide>(pixels + K * WIDE)...};
    ((of[K] = planar<C, K>(all, Lanes<WIDE>())), ...);
  }
};

struct Pixels {
  const void* data;
  bool bytes;

  // a vector of values in [0, 1]
  template <class P> Wide at(long image, int c, int y, int x) const {
    const long place = image * P::VALUES + (c * P::H + y) * P::W + x;
    if (!bytes) return load<Wide>((const float*)data + place) * (1.0f / 255);
    Of<WIDE>::Bytes small;
    std::memcpy(&small, (const uint8_t*)data + place, sizeof small);
    // in two steps: gcc would convert byte by byte
    const auto larger = __builtin_convertvector(small, Of<WIDE>::Shorts);
    return __builtin_convertvector(__builtin_convertvector(larger, Of<WIDE>::Bits), Wide) * (1.0f / 255);
  }
};

// ---- the encoder

template <int H, int W, int... C> struct Encoder;

template <int H, int W, int C> struct Encoder<H, W, C> {  // after the last stage: tokens
  using Here = Image<H, W, C>;
  static constexpr int PARAMETERS = 0, Z = 0, SCALES = 0, TOKENS = Here::VALUES;
  void take(const float*, float) {}
  void give(float*) const {}
  void outer(const Here&) {}
  void forward(const Here& here, float*, float*, float* tokens) { here.give(tokens); }
  void backward(Here& gradient, const float*, const float*, const float* tokens_gradient) {
    gradient.take(tokens_gradient);
  }
};

template <int H, int W, int F, int C, int... More> struct Encoder<H, W, F, C, More...> {
  using Here = Image<H, W, F>;
  using There = Image<H / 2, W / 2, C>;
  using Next = Encoder<H / 2, W / 2, C, More...>;
  static constexpr int WEIGHT = 16 * F * C, OWN = WEIGHT + 2 * C, PARAMETERS = OWN + Next::PARAMETERS;
  static constexpr int Z = There::VALUES + Next::Z, SCALES = There::PIXELS + Next::SCALES, TOKENS = Next::TOKENS;
  Stage<Here, There> stage;
  Norm<C, W / 2> norm;
  Next next;
  There before, after;                    // input and output of the norm
  There gradient_before, gradient_after;  // gradients of these

  void take(const float* parameters, float eps) {
    stage.take(parameters), norm.take(parameters + WEIGHT, eps), next.take(parameters + OWN, eps);
  }
  void give(float* gradient) const { stage.give(gradient), norm.give(gradient + WEIGHT), next.give(gradient + OWN); }

  void forward(const Here& here, float* z, float* scales, float* tokens) {
    stage.down(here, before);
    norm.forward(There::H, before.row(0), There::PITCH, z, scales, after.row(0), There::PITCH);
    next.forward(after, z + There::VALUES, scales + There::PIXELS, tokens);
  }

  // the backward pass down to the convolution's output; the caller, who has the convolution's input, calls ``outer``
  // for its weight
  void backward_to_output(const float* z, const float* scales, const float* tokens_gradient) {
    next.backward(gradient_after, z + There::VALUES, scales + There::PIXELS, tokens_gradient);
    norm.backward(There::H, gradient_after.row(0), There::PITCH, z, scales, gradient_before.row(0), after.row(0));
    next.outer(after);
  }
  void outer(const Here& here) { stage.outer(here, gradient_before); }
  void backward(Here& gradient, const float* z, const float* scales, const float* tokens_gradient) {
    backward_to_output(z, scales, tokens_gradient);
    stage.up(gradient_before, gradient);
  }
};

// ---- the decoder

template <int H, int W, int... C> struct Decoder;

template <int H, int W, int C> struct Decoder<H, W, C> {  // before the first stage: inputs
  using Here = Image<H, W, C>;
  static constexpr int PARAMETERS = 0, INPUTS = Here::VALUES;
  Here after, gradient_after;
  void take(const float*, float) {}
  void give(float*) const {}
  void forward(const float* inputs) { after.take(inputs); }
  void backward(float* inputs_gradient) { gradient_after.give(inputs_gradient); }
};

template <int H, int W, int F, int C, int... More> struct Decoder<H, W, F, C, More...> {
  using Here = Image<H, W, F>;
  using Next = Decoder<H / 2, W / 2, C, More...>;
  static constexpr int WEIGHT = 16 * F * C, OWN = WEIGHT + 2 * F;
  static constexpr int PARAMETERS = OWN + Next::PARAMETERS, INPUTS = Next::INPUTS;
  Stage<Here, typename Next::Here> stage;
  Norm<F, W> norm;
  Next next;
  Here before, after;                    // input and output of the norm
  Here gradient_before, gradient_after;  // gradients of these
  float z[Here::VALUES], scales[Here::PIXELS];

  void take(const float* parameters, float eps) {
    stage.take(parameters), norm.take(parameters + WEIGHT, eps), next.take(parameters + OWN, eps);
  }
  void give(float* gradient) const { stage.give(gradient), norm.give(gradient + WEIGHT), next.give(gradient + OWN); }

  void forward(const float* inputs) {
    next.forward(inputs);
    stage.up(next.after, before);
    norm.forward(H, before.row(0), Here::PITCH, z, scales, after.row(0), Here::PITCH);
  }
  void backward(float* inputs_gradient) {
    norm.backward(H, gradient_after.row(0), Here::PITCH, z, scales, gradient_before.row(0), nullptr);
    stage.outer(gradient_before, next.after);
    stage.down(gradient_before, next.gradient_after);
    next.backward(inputs_gradient);
  }
};

// The decoder's last stage, with a bias and no norm, whose output is the reconstruction, and the squared error of that.
template <int H, int W, int F, int C, int... More> struct DecoderLoss {
  using Here = Image<H, W, F>;
  using Next = Decoder<H / 2, W / 2, C, More...>;
  static constexpr int WEIGHT = 16 * F * C, OWN = WEIGHT + F;
  static constexpr int PARAMETERS = OWN + Next::PARAMETERS, INPUTS = Next::INPUTS;
  Stage<Here, typename Next::Here> stage;
  Next next;
  Here reconstruction, output_gradient;
  float bias[F], bias_gradient[F];

  void take(const float* parameters, float eps) {
    stage.take(parameters), next.take(parameters + OWN, eps);
    std::memcpy(bias, parameters + WEIGHT, sizeof bias);
  }
  void give(float* gradient) const {
    stage.give(gradient), next.give(gradient + OWN);
    std::memcpy(gradient + WEIGHT, bias_gradient, sizeof bias_gradient);
  }

  // the squared error of the reconstruction, and the gradient of ``weight`` times it
  float compare(Pixels target, long which, float weight) {
    Channels<F> pixels;
    Wide squares = {}, sums[F] = {};
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x += WIDE) {
        pixels.take(reconstruction.row(y) + x * F, Lanes<F>());
        for (int c = 0; c < F; c++) {
          const Wide error = pixels.of[c] + bias[c] - target.at<Here>(which, c, y, x);
          squares += error * error, sums[c] += error;
          pixels.of[c] = 2 * weight * error;
        }
        pixels.give(output_gradient.row(y) + x * F, Lanes<F>());
      }
    for (int c = 0; c < F; c++) bias_gradient[c] += 2 * weight * total<WIDE>(sums[c])[0];
    return total<WIDE>(squares)[0];
  }

  float learn(const float* inputs, Pixels target, long which, float weight, float* inputs_gradient) {
    next.forward(inputs);
    stage.up(next.after, reconstruction);
    const float error = compare(target, which, weight);
    stage.outer(output_gradient, next.after);
    stage.down(output_gradient, next.gradient_after);
    next.backward(inputs_gradient);
    return error;
  }
};

// ---- the functions that Python calls

using TheEncoder = Encoder<SIZES>;
using TheDecoderLoss = DecoderLoss<SIZES>;

static void centre(Pixels pixels, long which, TheEncoder::Here& here) {
  using P = TheEncoder::Here;
  Channels<P::C> channels;
  for (int y = 0; y < P::H; y++)
    for (int x = 0; x < P::W; x += WIDE) {
      for (int c = 0; c < P::C; c++) channels.of[c] = pixels.at<P>(which, c, y, x) - 0.5f;
      channels.give(here.row(y) + x * P::C, Lanes<P::C>());
    }
}

// lengths of the axes that depend on the network
extern "C" void sizes(SIZES_ARGUMENTS) {
  using E = TheEncoder;
  const int64_t all[] = {E::Z, E::SCALES, E::TOKENS, E::PARAMETERS, TheDecoderLoss::PARAMETERS, WIDE};
  std::memcpy(lengths, all, sizeof all);
}

extern "C" void encode(ENCODE_ARGUMENTS) {
  using E = TheEncoder;
  in_threads(n, threads, [&](int, long first, long last) {
    auto encoder = std::make_unique<E>();
    auto here = std::make_unique<E::Here>();
    encoder->take(parameters, eps);
    for (long i = first; i < last; i++) {
      centre({pixels, pixels_dtype == UINT8}, i, *here);
      encoder->forward(*here, z + i * E::Z, scales + i * E::SCALES, tokens + i * E::TOKENS);
    }
  });
}

extern "C" void encode_backward(ENCODE_BACKWARD_ARGUMENTS) {
  using E = TheEncoder;
  in_threads(n, threads, [&](int k, long first, long last) {
    auto encoder = std::make_unique<E>();
    auto here = std::make_unique<E::Here>();
    encoder->take(parameters, 0);
    for (long i = first; i < last; i++) {
      encoder->backward_to_output(z + i * E::Z, scales + i * E::SCALES, tokens_gradient + i * E::TOKENS);
      centre({pixels, pixels_dtype == UINT8}, i, *here);
      encoder->outer(*here);
    }
    encoder->give(parameters_gradient + (long)k * E::PARAMETERS);
  });
}

extern "C" void decoder_loss(DECODER_LOSS_ARGUMENTS) {
  using D = TheDecoderLoss;
  in_threads(n, threads, [&](int k, long first, long last) {
    auto decoder = std::make_unique<D>();
    decoder->take(parameters, eps);
    for (long i = first; i < last; i++)
      errors[i] = decoder->learn(inputs + i * D::INPUTS, {pixels, pixels_dtype == UINT8}, i, weight,
                                 inputs_gradient + i * D::INPUTS);
    decoder->give(parameters_gradient + (long)k * D::PARAMETERS);
  });
}
