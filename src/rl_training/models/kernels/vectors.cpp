// The parts that both kernels use: vectors, matrix products that accumulate in registers, and layer normalisation with
// SiLU. All sizes are compile-time constants: a kernel is built for the sizes of one network.

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

// lanes of a register, registers for sums, vectors of an output at a time
#if defined(__AVX512F__)
constexpr int WIDE = 16, REGISTERS = 24, MOST_VECTORS = 4;
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

// lanes FROM of two vectors, one after the other
template <int... FROM, class V> static inline V shuffled(V a, V b) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, FROM...);
#else
  return __builtin_shuffle(a, b, typename Of<LANES<V>>::Bits{FROM...});
#endif
}

// lane i is lane i ^ BIT, i / GROUP or i % GROUP
template <int BIT, class V, int... I> static inline V swapped(V v, std::integer_sequence<int, I...>) {
  return shuffled<(I ^ BIT)...>(v, v);
}
template <int GROUP, class V, int... I> static inline V spread(V v, std::integer_sequence<int, I...>) {
  return shuffled<(I / GROUP)...>(v, v);
}
template <int GROUP, class V, int... I> static inline V repeated(V v, std::integer_sequence<int, I...>) {
  return shuffled<(I % GROUP)...>(v, v);
}

// Sums with groups of GROUP lanes. ``total``: over the lanes of a group, in each of its lanes. ``folded``: over
// groups, lane by lane, in the first group.
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

#if defined(__AVX512F__)  // an estimate of 14 bits and one step of Newton's method: a third of the time
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

// e^x is 2^n e^r with |r| <= ln(2) / 2, and a polynomial for e^r
template <class V> static inline V exponential(V x) {
  typedef typename Of<LANES<V>>::Bits Bits;
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
  return p * scale;
}

template <class V> static inline V sigmoid(V x) { return inverse<V>(1.0f + exponential<V>(-x)); }

// ---- products

constexpr int lanes_of_sums(int n, int lanes = WIDE) {
  return lanes > 4 && n <= lanes / 2 ? lanes_of_sums(n, lanes / 2) : lanes;
}

// Sums of N numbers, in vectors of which TILE, up to LIMIT, are in registers at a time for up to MOST outputs
template <int N, int LIMIT = MOST_VECTORS> struct Sums {
  static constexpr int L = lanes_of_sums(N), VECTORS = (N + L - 1) / L;
  static constexpr int WIDTH = VECTORS * L, LAST = N - (VECTORS - 1) * L;
  static constexpr int TILE = VECTORS % LIMIT == 0 ? LIMIT : VECTORS % 2 == 0 && LIMIT > 1 ? 2 : 1;
  static constexpr int TILES = VECTORS / TILE, MOST = REGISTERS / TILE;
  typedef typename Of<L>::Lanes V;
};

// f(start, size) with a compile-time size, for COUNT items in about equal parts of at most MOST
template <int COUNT, int MOST, class F> static inline void in_parts(F f) {
  constexpr int PARTS = (COUNT + MOST - 1) / MOST, SIZE = COUNT / PARTS, LARGER = COUNT % PARTS;
  if constexpr (LARGER > 0)
    for (int k = 0; k < LARGER; k++) f(k * (SIZE + 1), std::integral_constant<int, SIZE + 1>());
  for (int k = 0; k < PARTS - LARGER; k++) f(LARGER * (SIZE + 1) + k * SIZE, std::integral_constant<int, SIZE>());
}

// sums[m] += x[m * STRIDE] * the vectors at w
template <int STRIDE, class V, int M, int TILE>
__attribute__((always_inline)) static inline void accumulate(V (&sums)[M][TILE], const float* x, const float* w) {
  V b[TILE];
#pragma GCC unroll 32
  for (int v = 0; v < TILE; v++) b[v] = load<V>(w + v * LANES<V>);
#pragma GCC unroll 32
  for (int m = 0; m < M; m++)
#pragma GCC unroll 32
    for (int v = 0; v < TILE; v++) sums[m][v] += x[m * STRIDE] * b[v];
}

// A weight (ROWS, CHUNK, N), for out[n] = sum over r and j of in[r * PITCH + j] * weight[r, j, n]
template <int ROWS, int CHUNK, int N, int LIMIT = MOST_VECTORS> struct Weight {
  using S = Sums<N, LIMIT>;
  typedef typename S::V V;
  float packed[S::TILES][ROWS * CHUNK][S::TILE * S::L];

  template <class F> void pack(F weight) {
    for (int r = 0; r < ROWS; r++)
      for (int j = 0; j < CHUNK; j++)
        for (int n = 0; n < S::WIDTH; n++)
          packed[n / (S::TILE * S::L)][r * CHUNK + j][n % (S::TILE * S::L)] = n < N ? weight(r, j, n) : 0.0f;
  }

  // COUNT outputs that are OUT apart, from inputs that are STRIDE apart
  template <int COUNT, int STRIDE, int PITCH, int OUT = N> void along(const float* in, float* out) const {
    for (int t = 0; t < S::TILES; t++)
      in_parts<COUNT, S::MOST>([&](int first, auto size) {
        constexpr int M = decltype(size)::value;
        const float *x = in + first * STRIDE, *w = packed[t][0];
        V sums[M][S::TILE] = {};
        for (int r = 0; r < ROWS; r++, x += PITCH)
          for (int j = 0; j < CHUNK; j++, w += S::TILE * S::L) accumulate<STRIDE>(sums, x + j, w);
#pragma GCC unroll 32
        for (int m = 0; m < M; m++)
#pragma GCC unroll 32
          for (int v = 0; v < S::TILE; v++) {
            const int k = t * S::TILE + v;
            std::memcpy(out + (first + m) * OUT + k * S::L, &sums[m][v], k + 1 < S::VECTORS ? sizeof(V) : 4 * S::LAST);
          }
      });
  }
};

// ---- norms

// The number of lanes for pixels of c channels, w of them in a row: several pixels in a vector, or a pixel in several
// vectors
constexpr int lanes_of_pixels(int c, int w, int lanes = WIDE) {
  const bool several = c <= lanes && lanes % c == 0 && w % (lanes / c) == 0;
  return several || c % lanes == 0 ? lanes : lanes_of_pixels(c, w, lanes / 2);
}

// Layer normalisation over the C channels of pixels, then SiLU: ``height`` rows of W pixels, a pitch apart. It saves
// for the backward pass, without gaps, the normalised values ``z`` and one over the standard deviation of each pixel,
// ``scales``.
template <int C, int W> struct Norm {
  static constexpr int L = lanes_of_pixels(C, W), GROUP = C < L ? C : L, R = L / GROUP;  // R pixels in a vector
  static constexpr int STEP = C * R, VECTORS = STEP / L;
  typedef typename Of<L>::Lanes V;
  float gain[C], bias[C], gain_gradient[C], bias_gradient[C];
  float eps;

  void take(const float* x, float e) {
    std::memcpy(gain, x, sizeof gain), std::memcpy(bias, x + C, sizeof bias);
    eps = e;
  }
  void give(float* gradient) const {
    std::memcpy(gradient, gain_gradient, sizeof gain_gradient);
    std::memcpy(gradient + C, bias_gradient, sizeof bias_gradient);
  }

  static V at(const float* x, int v) { return repeated<GROUP>(load<V>(x + v * L, 4 * GROUP), Lanes<L>()); }

  void forward(int height, const float* before, int pitch, float* z, float* scales, float* after,
               int after_pitch) const {
    V a[VECTORS], b[VECTORS], d[VECTORS];
    for (int v = 0; v < VECTORS; v++) a[v] = at(gain, v), b[v] = at(bias, v);
    for (int row = 0; row < height; row++) {
      const float* x = before + row * pitch;
      float* y = after + row * after_pitch;
      for (int i = 0; i < W; i += R, x += STEP, y += STEP, z += STEP, scales += R) {
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

  // from the gradient of the output to that of the input; where ``after`` is given, computes the output again too
  void backward(int height, const float* gradient, int pitch, const float* z, const float* scales,
                float* gradient_before, float* after) {
    V a[VECTORS], b[VECTORS], t[VECTORS], to_gain[VECTORS] = {}, to_bias[VECTORS] = {};
    for (int v = 0; v < VECTORS; v++) a[v] = at(gain, v), b[v] = at(bias, v);
    for (int row = 0; row < height; row++) {
      const float* g = gradient + row * pitch;
      float *dx = gradient_before + row * pitch, *y = after ? after + row * pitch : nullptr;
      for (int i = 0; i < W; i += R, g += STEP, dx += STEP, z += STEP, scales += R) {
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
        gain_gradient[v * L + c] += folded<GROUP>(to_gain[v])[c];
        bias_gradient[v * L + c] += folded<GROUP>(to_bias[v])[c];
      }
  }
};

// ---- threads

// f(k, first, last) for every thread k and its range of n items; results depend on the number of threads and not on
// their timing
template <class F> static void in_threads(long n, int threads, F f) {
#pragma omp parallel for num_threads(threads)
  for (int k = 0; k < threads; k++) f(k, n * k / threads, n * (k + 1) / threads);
}
