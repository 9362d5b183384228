"""Layer normalisation and SiLU over rows as short as the channels of a picture, in one pass over memory: torch's own two take four,
and on rows of eight numbers its norm is mostly overhead. C++ that torch's compiler builds on first use, and caches."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

LANES, MOST = 8, 1024  # widths are multiples of the former, up to the latter
FLAGS = ("-ffp-contract=fast", "-fno-math-errno")  # a product and a sum are one instruction, and so is a root

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

enum { MOST = 1024 };
template <int L> struct Of {
  typedef float Lanes __attribute__((vector_size(4 * L)));
  typedef int32_t Bits __attribute__((vector_size(4 * L)));
};
typedef Of<8>::Lanes Eight;
typedef Of<16>::Lanes Sixteen;

template <class V> static inline V load(const float* x) {
  V v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

template <class V> static inline void store(float* x, V v) { std::memcpy(x, &v, sizeof v); }

static inline Sixteen beside(Eight a, Eight b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

static inline Eight half(Sixteen v, int which) { return load<Eight>((const float*)&v + 8 * which); }

// the sum of eight lanes, in each of them
static inline Eight sum_of_eights(Eight v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  return v + __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
}

static inline Sixteen sum_of_eights(Sixteen v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  return v + __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}

// How rows lie in vectors: R of them in one, or one in several. ``spread`` puts a number of each row into its lanes, ``total`` the
// sum of its lanes, ``folded`` adds the rows up.
template <int LANES> struct OneRow {
  typedef typename Of<LANES>::Lanes V;
  enum { L = LANES, R = 1 };
  static V spread(const float* rows) { return V{} + rows[0]; }
  static V repeated(const float* x) { return load<V>(x); }
  static void folded(float* x, V v) { store(x, v); }
};

struct InEights : OneRow<8> {
  static V total(V v) { return sum_of_eights(v); }
};

struct InSixteens : OneRow<16> {
  static V total(V v) {
    v = sum_of_eights(v);
    return v + beside(half(v, 1), half(v, 0));
  }
};

struct InPairs {  // two rows of eight
  typedef Sixteen V;
  enum { L = 16, R = 2 };
  static V spread(const float* rows) { return beside(Eight{} + rows[0], Eight{} + rows[1]); }
  static V total(V v) { return sum_of_eights(v); }
  static V repeated(const float* x) { return beside(load<Eight>(x), load<Eight>(x)); }
  static void folded(float* x, V v) { store(x, half(v, 0) + half(v, 1)); }
};

// 1 / (1 + e^-x): e^-x is 2^n e^r with |r| <= ln(2) / 2, and a polynomial for e^r
template <class V> static inline V sigmoid(V x) {
  typedef typename Of<sizeof(V) / 4>::Bits Bits;
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
  return 1.0f / (1.0f + p * scale);
}

// n rows of ``width`` numbers, a multiple of those in a vector; W is the same, or 0 where it is known only at run time
template <class In, int W> static void normalised(const float* x, const float* gain, const float* bias, float* y, float* rows,
                                                  long n, int width, float eps) {
  typedef typename In::V V;
  enum { MOST_VECTORS = (W ? W * In::R : MOST) / In::L };
  const int C = W ? W : width, step = C * In::R, vectors = step / In::L;
  V a[MOST_VECTORS], b[MOST_VECTORS];
  for (int v = 0; v < vectors; v++) a[v] = In::repeated(gain + v * In::L), b[v] = In::repeated(bias + v * In::L);
  for (long i = 0; i < n; i += In::R, x += step, y += step, rows += 2 * In::R) {
    V sum = {}, squares = {};
    for (int v = 0; v < vectors; v++) sum += load<V>(x + v * In::L);
    const V mean = In::total(sum) / (float)C;
    for (int v = 0; v < vectors; v++) {
      const V d = load<V>(x + v * In::L) - mean;
      squares += d * d;
    }
    const V variance = In::total(squares) / (float)C;
    float scales[In::R];
    for (int r = 0; r < In::R; r++) {
      scales[r] = 1 / std::sqrt(variance[8 * r] + eps);
      rows[2 * r] = mean[8 * r], rows[2 * r + 1] = scales[r];
    }
    const V scale = In::spread(scales);
    for (int v = 0; v < vectors; v++) {
      const V h = (load<V>(x + v * In::L) - mean) * scale * a[v] + b[v];
      store(y + v * In::L, h * sigmoid(h));
    }
  }
}

template <class In, int W> static void backwards(const float* g, const float* x, const float* rows, const float* gain,
                                                 const float* bias, float* dx, float* sums, long n, int width) {
  typedef typename In::V V;
  enum { MOST_VECTORS = (W ? W * In::R : MOST) / In::L };
  const int C = W ? W : width, step = C * In::R, vectors = step / In::L;
  V z[MOST_VECTORS], t[MOST_VECTORS], a[MOST_VECTORS], b[MOST_VECTORS], of_gain[MOST_VECTORS] = {}, of_bias[MOST_VECTORS] = {};
  for (int v = 0; v < vectors; v++) a[v] = In::repeated(gain + v * In::L), b[v] = In::repeated(bias + v * In::L);
  for (long i = 0; i < n; i += In::R, g += step, x += step, dx += step, rows += 2 * In::R) {
    float means[In::R], scales[In::R];
    for (int r = 0; r < In::R; r++) means[r] = rows[2 * r], scales[r] = rows[2 * r + 1];
    const V mean = In::spread(means), scale = In::spread(scales);
    V sum = {}, product = {};
    for (int v = 0; v < vectors; v++) {
      z[v] = (load<V>(x + v * In::L) - mean) * scale;
      const V h = z[v] * a[v] + b[v], s = sigmoid(h);
      const V d = load<V>(g + v * In::L) * s * (1.0f + h * (1.0f - s));
      of_gain[v] += d * z[v], of_bias[v] += d;
      t[v] = d * a[v];
      sum += t[v], product += t[v] * z[v];
    }
    const V mean_t = In::total(sum) / (float)C, mean_tz = In::total(product) / (float)C;
    for (int v = 0; v < vectors; v++) store(dx + v * In::L, scale * (t[v] - mean_t - z[v] * mean_tz));
  }
  for (int v = 0; v < vectors; v++) In::folded(sums + v * In::L, of_gain[v]), In::folded(sums + C + v * In::L, of_bias[v]);
}

#define FOR_WIDTH(call) \
  switch (width) { \
    case 8: \
      if (count % 2) call<InEights, 8> ARGUMENTS; \
      else call<InPairs, 8> ARGUMENTS; \
      break; \
    case 16: call<InSixteens, 16> ARGUMENTS; break; \
    case 32: call<InSixteens, 32> ARGUMENTS; break; \
    case 64: call<InSixteens, 64> ARGUMENTS; break; \
    default: call<InEights, 0> ARGUMENTS; \
  }

// every thread has a stretch of rows, in pairs, and sums of its own, so that a result depends on their number alone
static inline long start_of(long n, int k, int threads) { return k == threads ? n : n / 2 * k / threads * 2; }

extern "C" void forward(const float* x, const float* gain, const float* bias, float* y, float* rows, long n, int width, float eps,
                        int threads) {
#pragma omp parallel for num_threads(threads)
  for (int k = 0; k < threads; k++) {
    const long first = start_of(n, k, threads), count = start_of(n, k + 1, threads) - first;
#define ARGUMENTS (x + first * width, gain, bias, y + first * width, rows + 2 * first, count, width, eps)
    FOR_WIDTH(normalised)
#undef ARGUMENTS
  }
}

extern "C" void backward(const float* g, const float* x, const float* rows, const float* gain, const float* bias, float* dx,
                         float* sums, long n, int width, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int k = 0; k < threads; k++) {
    const long first = start_of(n, k, threads), count = start_of(n, k + 1, threads) - first, at = first * width;
#define ARGUMENTS (g + at, x + at, rows + 2 * first, gain, bias, dx + at, sums + 2l * width * k, count, width)
    FOR_WIDTH(backwards)
#undef ARGUMENTS
  }
}
"""


@cache
def library() -> Any:
    """The compiled functions; the first call takes a few seconds on a machine that has not built them yet."""
    from torch._inductor.codecache import CppCodeCache

    return CppCodeCache.load(SOURCE, device_type="cpu", extra_flags=FLAGS)


def fits(gain: torch.Tensor) -> bool:
    """Whether rows as wide as ``gain`` can be normalised here."""
    return gain.device.type == "cpu" and len(gain) % LANES == 0 and len(gain) <= MOST


@cache
def cannot_build() -> str | None:
    """Why there is no library, or None; builds it."""
    try:
        library()
    except Exception as error:  # a compiler can fail in as many ways as there are compilers
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


class NormSiLU(torch.autograd.Function):
    """silu(layer_norm(x) * gain + bias) of rows (N, C), float32, on the CPU; C a multiple of 8, up to 1024."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        n, width = x.shape
        y, rows = torch.empty_like(x), x.new_empty(n, 2)
        sizes = ctypes.c_long(n), width, ctypes.c_float(eps), torch.get_num_threads()
        library().forward(_at(x), _at(gain), _at(bias), _at(y), _at(rows), *sizes)
        ctx.save_for_backward(x, rows, gain, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, rows, gain, bias = ctx.saved_tensors
        grad, (n, width), threads = grad.contiguous(), x.shape, torch.get_num_threads()
        dx, sums = torch.empty_like(x), x.new_empty(threads, 2, width)
        inputs = (_at(tensor) for tensor in (grad, x, rows, gain, bias, dx, sums))
        library().backward(*inputs, ctypes.c_long(n), width, threads)
        return dx, *sums.sum(0), None
