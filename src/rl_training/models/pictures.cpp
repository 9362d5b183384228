// Dreamer's convolutions of 4 x 4 in steps of two, with layer normalisation over channels and SiLU between them, forward and backward.
//
// A few pictures at a time go all the way, so that what one stage makes is in the cache when the next one takes it. A picture of H x W
// pixels of C channels lies in memory as (H + 2, W + 2, C), with a rim of zeros. A stage ties fine pictures to coarse ones of half the
// side, and takes three products, each a sum over pixels that are neighbours in memory:
//
//   down    a coarse pixel is a sum over four rows of four fine pixels: the encoder's way, and the decoder's way back
//   up      two fine pixels side by side are a sum over two rows of two coarse pixels: the decoder's way, and the encoder's way back
//   outer   the gradient of the weight is the sum, over coarse pixels, of each times four rows of four fine pixels: for both
//
// Built for one network: SIZES is the height, width and channels of pixels, and the channels after every stage. Everything is known to
// the compiler, so that sums stay in registers.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// ---- vectors

#if defined(__AVX512F__)
constexpr int WIDE = 16, REGISTERS = 24, MOST_VECTORS = 4;  // lanes of a register, registers for sums, vectors of one output at a time
#elif defined(__AVX__)
constexpr int WIDE = 8, REGISTERS = 12, MOST_VECTORS = 2;
#else
constexpr int WIDE = 4, REGISTERS = 12, MOST_VECTORS = 2;
#endif

template <int L> struct Of {
  typedef float Lanes __attribute__((vector_size(4 * L)));
  typedef int32_t Bits __attribute__((vector_size(4 * L)));
  typedef uint8_t Bytes __attribute__((vector_size(L)));
  typedef uint16_t Shorts __attribute__((vector_size(2 * L)));
};
typedef Of<WIDE>::Lanes Wide;
template <class V> constexpr int LANES = sizeof(V) / 4;
template <int N> using Lanes = std::make_integer_sequence<int, N>;

template <class V> static inline V load(const float* x, int bytes = sizeof(V)) {
  V v = {};
  std::memcpy(&v, x, bytes);
  return v;
}

template <class V> static inline void store(float* x, V v) { std::memcpy(x, &v, sizeof v); }

// lane i is lane i ^ BIT, i / GROUP or i % GROUP
template <int BIT, class V, int... I> static inline V swapped(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ BIT)...);
}
template <int GROUP, class V, int... I> static inline V spread(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I / GROUP)...);
}
template <int GROUP, class V, int... I> static inline V repeated(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I % GROUP)...);
}

// the sum of every GROUP lanes, in each of them; or of every lane of a group, in the first
template <int GROUP, class V> static inline V total(V v) {
  if constexpr (GROUP > 1) v = total<GROUP / 2>(v + swapped<GROUP / 2>(v, Lanes<LANES<V>>()));
  return v;
}
template <int GROUP, class V> static inline V folded(V v) {
  if constexpr (GROUP < LANES<V>) v = folded<2 * GROUP>(v + swapped<GROUP>(v, Lanes<LANES<V>>()));
  return v;
}

// 1 / x and 1 / sqrt(x)
template <class V> static inline V inverse(V x) { return 1.0f / x; }

template <class V> static inline V inverse_root(V x) {
  for (int i = 0; i < LANES<V>; i++) x[i] = 1.0f / std::sqrt(x[i]);
  return x;
}

#if defined(__AVX512F__)  // guessed to 14 bits, and one step of Newton's, in a third of the time
typedef Of<16>::Lanes Sixteen;

template <> inline Sixteen inverse(Sixteen x) {
  const Sixteen y = (Sixteen)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
  return y * (2.0f - x * y);
}

template <> inline Sixteen inverse_root(Sixteen x) {
  const Sixteen y = (Sixteen)_mm512_maskz_rsqrt14_ps(0xffff, (__m512)x);
  return y * (1.5f - 0.5f * x * y * y);
}
#endif

// 1 / (1 + e^-x): e^-x is 2^n e^r with |r| <= ln(2) / 2, and a polynomial for e^r
template <class V> static inline V sigmoid(V x) {
  typedef typename Of<LANES<V>>::Bits Bits;
  x = -x;
  x = x < -87.0f ? V{} - 87.0f : x > 87.0f ? V{} + 87.0f : x;
  const V n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V p = V{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Bits bits = (__builtin_convertvector(n, Bits) + 127) << 23;
  V scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return inverse<V>(1.0f + p * scale);
}

// ---- pictures

template <int H_, int W_, int C_> struct Picture {
  static constexpr int H = H_, W = W_, C = C_, PITCH = (W + 2) * C, PIXELS = H * W, NUMBERS = PIXELS * C;
  static_assert(H > 0 && W > 0 && C > 0, "no picture");
  float data[(H + 2) * PITCH + 16];  // vectors may reach over the end

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

// ---- products

constexpr int lanes_of_sums(int n, int lanes = WIDE) { return lanes > 4 && n <= lanes / 2 ? lanes_of_sums(n, lanes / 2) : lanes; }

// Sums of N numbers, in vectors of which TILE are in registers at a time for up to MOST outputs
template <int N> struct Sums {
  static constexpr int L = lanes_of_sums(N), VECTORS = (N + L - 1) / L, WIDTH = VECTORS * L, LAST = N - (VECTORS - 1) * L;
  static constexpr int TILE = VECTORS % MOST_VECTORS == 0 ? MOST_VECTORS : VECTORS % 2 == 0 ? 2 : 1;
  static constexpr int TILES = VECTORS / TILE, MOST = REGISTERS / TILE;
  typedef typename Of<L>::Lanes V;
};

// f(start, size) with a size known to the compiler, for COUNT things in about equal parts of at most MOST
template <int COUNT, int MOST, class F> static inline void in_parts(F f) {
  constexpr int PARTS = (COUNT + MOST - 1) / MOST, SIZE = COUNT / PARTS, LARGER = COUNT % PARTS;
  for (int k = 0; k < LARGER; k++) f(k * (SIZE + 1), std::integral_constant<int, SIZE + 1>());
  for (int k = 0; k < PARTS - LARGER; k++) f(LARGER * (SIZE + 1) + k * SIZE, std::integral_constant<int, SIZE>());
}

// A weight (ROWS, CHUNK, N), for out[n] = sum over r and j of in[r * PITCH + j] * weight[r, j, n]
template <int ROWS, int CHUNK, int N> struct Weight : Sums<N> {
  using S = Sums<N>;
  typedef typename S::V V;
  float packed[S::TILES][ROWS * CHUNK][S::TILE * S::L];

  template <class F> void pack(F weight) {
    for (int r = 0; r < ROWS; r++)
      for (int j = 0; j < CHUNK; j++)
        for (int n = 0; n < S::WIDTH; n++)
          packed[n / (S::TILE * S::L)][r * CHUNK + j][n % (S::TILE * S::L)] = n < N ? weight(r, j, n) : 0.0f;
  }

  // COUNT outputs side by side, from inputs that are STRIDE apart
  template <int COUNT, int STRIDE, int PITCH> void along(const float* in, float* out) const {
    for (int t = 0; t < S::TILES; t++)
      in_parts<COUNT, S::MOST>([&](int first, auto size) {
        constexpr int M = decltype(size)::value;
        const float *x = in + first * STRIDE, *w = packed[t][0];
        V sums[M][S::TILE] = {};
        for (int r = 0; r < ROWS; r++, x += PITCH)
          for (int j = 0; j < CHUNK; j++, w += S::TILE * S::L) {
            V b[S::TILE];
#pragma GCC unroll 32
            for (int v = 0; v < S::TILE; v++) b[v] = load<V>(w + v * S::L);
#pragma GCC unroll 32
            for (int m = 0; m < M; m++)
#pragma GCC unroll 32
              for (int v = 0; v < S::TILE; v++) sums[m][v] += x[m * STRIDE + j] * b[v];
          }
#pragma GCC unroll 32
        for (int m = 0; m < M; m++)
#pragma GCC unroll 32
          for (int v = 0; v < S::TILE; v++) {
            const int k = t * S::TILE + v;
            std::memcpy(out + (first + m) * N + k * S::L, &sums[m][v], k + 1 < S::VECTORS ? sizeof(V) : 4 * S::LAST);
          }
      });
  }
};

template <class Fine, class Coarse> struct Stage {
  static_assert((int)Fine::H == 2 * Coarse::H && (int)Fine::W == 2 * Coarse::W, "half the side");
  static constexpr int F = Fine::C, C = Coarse::C, NUMBERS = 16 * F * C;
  Weight<4, 4 * F, C> downwards;
  Weight<2, 2 * C, 2 * F> upwards[2];  // to even rows of the fine picture and to odd ones, the rim counted
  float sums[4][4 * F][Sums<C>::WIDTH];

  void take(const float* weight) {  // (C, F, 4, 4), as torch has it for both directions
    auto at = [&](int c, int f, int y, int x) { return weight[((c * F + f) * 4 + y) * 4 + x]; };
    downwards.pack([&](int r, int j, int n) { return at(n, j % F, r, j / F); });
    for (int odd = 0; odd < 2; odd++)
      upwards[odd].pack([&](int r, int j, int n) { return at(j % C, n % F, odd + 2 * (1 - r), n / F + 2 * (1 - j / C)); });
  }

  void give(float* gradient) const {
    for (int c = 0; c < C; c++)
      for (int f = 0; f < F; f++)
        for (int y = 0; y < 4; y++)
          for (int x = 0; x < 4; x++) *gradient++ = sums[y][x * F + f][c];
  }

  void down(const Fine& fine, Coarse& coarse) const {
    for (int y = 0; y < Coarse::H; y++)
      downwards.template along<Coarse::W, 2 * F, Fine::PITCH>(fine.data + 2 * y * Fine::PITCH, coarse.row(y));
  }

  // the rim of the fine picture becomes anything
  void up(const Coarse& coarse, Fine& fine) const {
    for (int q = 1; q <= Fine::H; q++)
      upwards[q % 2].template along<Coarse::W + 1, C, Coarse::PITCH>(coarse.data + q / 2 * Coarse::PITCH, fine.data + q * Fine::PITCH);
  }

  void outer(const Fine& fine, const Coarse& coarse) {
    using S = Sums<C>;
    typedef typename S::V V;
    for (int r = 0; r < 4; r++)
      for (int t = 0; t < S::TILES; t++)
        in_parts<4 * F, S::MOST>([&](int first, auto size) {
          constexpr int M = decltype(size)::value;
          V of[M][S::TILE];
          auto each = [&](auto f) {
#pragma GCC unroll 32
            for (int m = 0; m < M; m++)
#pragma GCC unroll 32
              for (int v = 0; v < S::TILE; v++) f(of[m][v], &sums[r][first + m][(t * S::TILE + v) * S::L]);
          };
          each([](V& v, float* sum) { v = load<V>(sum); });
          for (int y = 0; y < Coarse::H; y++) {
            const float *x = fine.data + (2 * y + r) * Fine::PITCH + first, *g = coarse.row(y) + t * S::TILE * S::L;
            for (int k = 0; k < Coarse::W; k++, x += 2 * F, g += C) {
              V b[S::TILE];
#pragma GCC unroll 32
              for (int v = 0; v < S::TILE; v++) b[v] = load<V>(g + v * S::L);
#pragma GCC unroll 32
              for (int m = 0; m < M; m++)
#pragma GCC unroll 32
                for (int v = 0; v < S::TILE; v++) of[m][v] += x[m] * b[v];
            }
          }
          each([](V& v, float* sum) { store<V>(sum, v); });
        });
  }
};

// ---- norms

// How many lanes are best for pixels of c channels, w of them in a row: several pixels in a vector, or a pixel in several
constexpr int lanes_of_pixels(int c, int w, int lanes = WIDE) {
  const bool several = c <= lanes && lanes % c == 0 && w % (lanes / c) == 0;
  return several || c % lanes == 0 ? lanes : lanes_of_pixels(c, w, lanes / 2);
}

// Layer normalisation over the channels of P, and SiLU. What it keeps of a picture, the normalised numbers and one over the deviation of
// each pixel, has no rim.
template <class P> struct Norm {
  static constexpr int C = P::C, L = lanes_of_pixels(C, P::W), GROUP = C < L ? C : L, R = L / GROUP;  // R pixels in a vector
  static constexpr int STEP = C * R, VECTORS = STEP / L;
  typedef typename Of<L>::Lanes V;
  float gain[C], bias[C], of_gain[C], of_bias[C];
  float eps;

  void take(const float* x, float e) {
    std::memcpy(gain, x, sizeof gain), std::memcpy(bias, x + C, sizeof bias);
    eps = e;
  }
  void give(float* gradient) const {
    std::memcpy(gradient, of_gain, sizeof of_gain), std::memcpy(gradient + C, of_bias, sizeof of_bias);
  }

  static V at(const float* x, int v) { return repeated<GROUP>(load<V>(x + v * L, 4 * GROUP), Lanes<L>()); }

  void forward(const P& picture, float* z, float* scales, P& result) const {
    V a[VECTORS], b[VECTORS], d[VECTORS];
    for (int v = 0; v < VECTORS; v++) a[v] = at(gain, v), b[v] = at(bias, v);
    for (int row = 0; row < P::H; row++) {
      const float* x = picture.row(row);
      float* y = result.row(row);
      for (int i = 0; i < P::W; i += R, x += STEP, y += STEP, z += STEP, scales += R) {
        V sum = {}, squares = {};
        for (int v = 0; v < VECTORS; v++) sum += load<V>(x + v * L);
        const V mean = total<GROUP>(sum) * (1.0f / C);
        for (int v = 0; v < VECTORS; v++) {
          d[v] = load<V>(x + v * L) - mean;
          squares += d[v] * d[v];
        }
        const V scale = inverse_root<V>(total<GROUP>(squares) * (1.0f / C) + eps);
        for (int r = 0; r < R; r++) scales[r] = scale[r * GROUP];
        for (int v = 0; v < VECTORS; v++) {
          d[v] *= scale;
          store(z + v * L, d[v]);
          const V h = d[v] * a[v] + b[v];
          store(y + v * L, h * sigmoid(h));
        }
      }
    }
  }

  // the slope of what came out, to that of what went in; and, where it is asked for, what came out once more
  void backward(const P& slope, const float* z, const float* scales, P& slope_before, P* result) {
    V a[VECTORS], b[VECTORS], t[VECTORS], to_gain[VECTORS] = {}, to_bias[VECTORS] = {};
    for (int v = 0; v < VECTORS; v++) a[v] = at(gain, v), b[v] = at(bias, v);
    for (int row = 0; row < P::H; row++) {
      const float* g = slope.row(row);
      float *dx = slope_before.row(row), *y = result ? result->row(row) : nullptr;
      for (int i = 0; i < P::W; i += R, g += STEP, dx += STEP, z += STEP, scales += R) {
        const V scale = spread<GROUP>(load<V>(scales, 4 * R), Lanes<L>());
        V sum = {}, product = {};
        for (int v = 0; v < VECTORS; v++) {
          const V n = load<V>(z + v * L), h = n * a[v] + b[v], s = sigmoid(h);
          const V d = load<V>(g + v * L) * s * (1.0f + h * (1.0f - s));
          if (y) store(y + i * C + v * L, h * s);
          to_gain[v] += d * n, to_bias[v] += d;
          t[v] = d * a[v];
          sum += t[v], product += t[v] * n;
        }
        const V mean_t = total<GROUP>(sum) * (1.0f / C), mean_tz = total<GROUP>(product) * (1.0f / C);
        for (int v = 0; v < VECTORS; v++)
          store(dx + v * L, scale * (t[v] - mean_t - load<V>(z + v * L) * mean_tz));
      }
    }
    for (int v = 0; v < VECTORS; v++)
      for (int c = 0; c < GROUP; c++) {
        of_gain[v * L + c] += folded<GROUP>(to_gain[v])[c];
        of_bias[v * L + c] += folded<GROUP>(to_bias[v])[c];
      }
  }
};

// ---- pixels, as torch has them: (channels, height, width), bytes or floats up to 255

// WIDE pixels lie as C vectors, number by number, or channel by channel. From channels to vector K, and from numbers to channel K,
// taking from one vector after another what belongs there.
template <int C, int K, int FROM = 0, int... I> static inline Wide numbers(const Wide* channels, std::integer_sequence<int, I...> i, Wide v = Wide{}) {
  if constexpr (FROM == C) return v;
  else return numbers<C, K, FROM + 1>(channels, i,
    __builtin_shufflevector(v, channels[FROM], ((K * WIDE + I) % C == FROM ? WIDE + (K * WIDE + I) / C : I)...));
}
template <int C, int K, int FROM = 0, int... I> static inline Wide channel(const Wide* numbers, std::integer_sequence<int, I...> i, Wide v = Wide{}) {
  if constexpr (FROM == C) return v;
  else return channel<C, K, FROM + 1>(numbers, i,
    __builtin_shufflevector(v, numbers[FROM], ((I * C + K) / WIDE == FROM ? WIDE + (I * C + K) % WIDE : I)...));
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
  Norm<There> norm;
  Next next;
  There before, after;             // the norm
  There slope_before, slope_after;  // the gradient there

  void take(const float* numbers, float eps) {
    stage.take(numbers), norm.take(numbers + WEIGHT, eps), next.take(numbers + OWN, eps);
  }
  void give(float* gradient) const { stage.give(gradient), norm.give(gradient + WEIGHT), next.give(gradient + OWN); }

  void forward(const Here& here, float* z, float* scales, float* tokens) {
    stage.down(here, before);
    norm.forward(before, z, scales, after);
    next.forward(after, z + There::NUMBERS, scales + There::PIXELS, tokens);
  }

  // up to the convolution; what went into it the caller knows, who then calls ``outer``
  void back(const float* z, const float* scales, const float* tokens) {
    next.backward(slope_after, z + There::NUMBERS, scales + There::PIXELS, tokens);
    norm.backward(slope_after, z, scales, slope_before, &after);
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
  Norm<Here> norm;
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
    norm.forward(before, z, scales, after);
  }
  void backward(float* slopes) {
    norm.backward(slope_after, z, scales, slope_before, nullptr);
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

// f(k, first, last) for every thread k and its stretch of pictures, so that a result depends on their number alone
template <class F> static void in_threads(long n, int threads, F f) {
#pragma omp parallel for num_threads(threads)
  for (int k = 0; k < threads; k++) f(k, n * k / threads, n * (k + 1) / threads);
}

// how many numbers there are: parameters of the encoder, kept of a picture (two kinds), tokens, parameters of the decoder
extern "C" void sizes(long* result) {
  const long all[] = {TheEncoder::NUMBERS, TheEncoder::Z, TheEncoder::SCALES, TheEncoder::TOKENS, ThePainter::NUMBERS};
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
