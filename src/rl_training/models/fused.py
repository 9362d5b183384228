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

typedef float Lanes __attribute__((vector_size(32)));
typedef int32_t Bits __attribute__((vector_size(32)));
enum { LANES = 8, MOST = 1024 };

static inline Lanes load(const float* x) {
  Lanes v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

static inline void store(float* x, Lanes v) { std::memcpy(x, &v, sizeof v); }

// the sum of all lanes, in each of them
static inline Lanes total(Lanes v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  return v + __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
}

// 1 / (1 + e^-x): e^-x is 2^n e^r with |r| <= ln(2) / 2, and a polynomial for e^r
static inline Lanes sigmoid(Lanes x) {
  x = -x;
  x = x < -87.0f ? Lanes{} - 87.0f : x > 87.0f ? Lanes{} + 87.0f : x;
  const Lanes n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Lanes p = Lanes{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Bits bits = (__builtin_convertvector(n, Bits) + 127) << 23;
  Lanes scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return 1.0f / (1.0f + p * scale);
}

// rows of ``width`` numbers; W is the same, or 0 where it is known only at run time
template <int W> static void normalised(const float* x, const float* gain, const float* bias, float* y, float* rows, long n,
                                        int width, float eps) {
  const int C = W ? W : width;
  for (long i = 0; i < n; i++, x += C, y += C) {
    Lanes sum = {}, squares = {};
    for (int c = 0; c < C; c += LANES) sum += load(x + c);
    const Lanes mean = total(sum) / (float)C;
    for (int c = 0; c < C; c += LANES) {
      const Lanes d = load(x + c) - mean;
      squares += d * d;
    }
    const float scale = 1 / std::sqrt(total(squares)[0] / C + eps);
    rows[2 * i] = mean[0], rows[2 * i + 1] = scale;
    for (int c = 0; c < C; c += LANES) {
      const Lanes h = (load(x + c) - mean) * scale * load(gain + c) + load(bias + c);
      store(y + c, h * sigmoid(h));
    }
  }
}

template <int W> static void backwards(const float* g, const float* x, const float* rows, const float* gain, const float* bias,
                                       float* dx, float* sums, long n, int width) {
  const int C = W ? W : width, vectors = C / LANES;
  Lanes z[(W ? W : MOST) / LANES], t[(W ? W : MOST) / LANES], of_gain[(W ? W : MOST) / LANES] = {},
      of_bias[(W ? W : MOST) / LANES] = {};
  for (long i = 0; i < n; i++, g += C, x += C, dx += C) {
    const float mean = rows[2 * i], scale = rows[2 * i + 1];
    Lanes sum = {}, product = {};
    for (int v = 0; v < vectors; v++) {
      const Lanes a = load(gain + v * LANES);
      z[v] = (load(x + v * LANES) - mean) * scale;
      const Lanes h = z[v] * a + load(bias + v * LANES), s = sigmoid(h);
      const Lanes d = load(g + v * LANES) * s * (1.0f + h * (1.0f - s));
      of_gain[v] += d * z[v], of_bias[v] += d;
      t[v] = d * a;
      sum += t[v], product += t[v] * z[v];
    }
    const Lanes mean_t = total(sum) / (float)C, mean_tz = total(product) / (float)C;
    for (int v = 0; v < vectors; v++) store(dx + v * LANES, scale * (t[v] - mean_t - z[v] * mean_tz));
  }
  for (int v = 0; v < vectors; v++) store(sums + v * LANES, of_gain[v]), store(sums + C + v * LANES, of_bias[v]);
}

#define FOR_WIDTH(call) \
  switch (width) { \
    case 8: call<8> ARGUMENTS; break; \
    case 16: call<16> ARGUMENTS; break; \
    case 32: call<32> ARGUMENTS; break; \
    case 64: call<64> ARGUMENTS; break; \
    default: call<0> ARGUMENTS; \
  }

// every thread has a stretch of rows, and sums of its own, so that a result depends on their number alone
extern "C" void forward(const float* x, const float* gain, const float* bias, float* y, float* rows, long n, int width, float eps,
                        int threads) {
#pragma omp parallel for num_threads(threads)
  for (int k = 0; k < threads; k++) {
    const long first = n * k / threads, count = n * (k + 1) / threads - first;
#define ARGUMENTS (x + first * width, gain, bias, y + first * width, rows + 2 * first, count, width, eps)
    FOR_WIDTH(normalised)
#undef ARGUMENTS
  }
}

extern "C" void backward(const float* g, const float* x, const float* rows, const float* gain, const float* bias, float* dx,
                         float* sums, long n, int width, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int k = 0; k < threads; k++) {
    const long first = n * k / threads, count = n * (k + 1) / threads - first, at = first * width;
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
