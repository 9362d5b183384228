// The posterior pass of Dreamer's RSSM over sequences: deterministic states and latents, step by step, and
// backpropagation through time. Sequences are independent; a few are computed together, so that a weight is read once
// for all of them. The backward pass computes the gradients of every product's output; those of the weights are then
// products over all steps at once, which torch computes.
//
// SIZES is the number of sequences computed together, the recurrence's blocks, the widths of the deterministic state,
// of hidden layers and of an embedded action, and the number of latents and of their classes. The arguments of the
// functions that Python calls are declared in border.py, which defines the *_ARGUMENTS.

template <int TOGETHER_, int BLOCKS_, int D_, int H_, int E_, int LATENTS, int CLASSES_> struct Recurrence {
  static constexpr int TOGETHER = TOGETHER_, BLOCKS = BLOCKS_, D = D_, H = H_, E = E_;
  static constexpr int CLASSES = CLASSES_, F = LATENTS * CLASSES;
  static constexpr int WIDTH = D / BLOCKS, MIXED = 2 * H + E, CHUNK = WIDTH + MIXED;
  template <int N> using All = float[TOGETHER][N];
  template <int IN, int OUT> using Product = Weight<1, IN, OUT, 2>;
  typedef typename Of<lanes_of_pixels(WIDTH, 1)>::Lanes V;
  typedef typename Of<lanes_of_pixels(CLASSES, 1)>::Lanes K;

  // For each step of a sequence: the activations that the backward pass needs ...
  struct Activations {
    float inputs[BLOCKS][CHUNK], inner[D], hidden[H], probs[F];
    float reset[D], candidate[D], proposed[D], update[D];
    float z_deter[H], z_stoch[H], z_inner[D], z_hidden[H], scales[4];
  };
  // ... and the gradients of each product's output and of the embedded action
  struct Gradients {
    float deter[H], stoch[H], hidden[H], logits[F], inner[D], gates[3 * D], action[E];
  };

  Norm<H, 1> of_deter, of_stoch, of_hidden;
  Norm<D, 1> of_inner;
  float uniform;  // share of the uniform distribution in a latent's probabilities

  // Pointers to the parameters: weights of linear layers (out, in), of block layers (blocks, in, out), biases, gains
  // and biases of norms
  struct Parameters {
    const float *deter, *stoch, *known, *hidden, *logits_bias, *inner, *inner_bias, *gates, *gates_bias, *norms;
    explicit Parameters(const float* x)
        : deter(x), stoch(deter + H * D), known(stoch + H * F), hidden(known + H * D), logits_bias(hidden + F * H),
          inner(logits_bias + F), inner_bias(inner + D * CHUNK), gates(inner_bias + D),
          gates_bias(gates + 3 * D * WIDTH), norms(gates_bias + 3 * D) {}
  };
  static constexpr int NORMS = 6 * H + 2 * D;
  static constexpr int PARAMETERS = 2 * H * D + 2 * H * F + F + D * (CHUNK + 1) + 3 * D * (WIDTH + 1) + NORMS;

  void take_norms(const float* norms, float eps) {
    of_deter.take(norms, eps), of_stoch.take(norms + 2 * H, eps);
    of_inner.take(norms + 4 * H, eps), of_hidden.take(norms + 4 * H + 2 * D, eps);
  }
  void give_norms(float* gradient) const {
    of_deter.give(gradient), of_stoch.give(gradient + 2 * H);
    of_inner.give(gradient + 4 * H), of_hidden.give(gradient + 4 * H + 2 * D);
  }

  template <int N> static void add(float* x, const float* y) {
    typedef typename Of<lanes_of_pixels(N, 1)>::Lanes L;
    for (int i = 0; i < N; i += LANES<L>) store(x + i, load<L>(x + i) + load<L>(y + i));
  }
  template <int N> static void scale(float* x, const float* y, float factor) {
    typedef typename Of<lanes_of_pixels(N, 1)>::Lanes L;
    for (int i = 0; i < N; i += LANES<L>) store(x + i, load<L>(y + i) * factor);
  }
};

template <class R> struct Forward : R {
  using R::BLOCKS, R::D, R::H, R::E, R::CLASSES, R::F, R::WIDTH, R::CHUNK;
  static constexpr int N = R::TOGETHER;
  template <int W> using All = typename R::template All<W>;
  using V = typename R::V;
  using K = typename R::K;
  typename R::template Product<D, H> by_deter, by_known;
  typename R::template Product<F, H> by_stoch;
  typename R::template Product<CHUNK, WIDTH> by_inner[BLOCKS];
  typename R::template Product<WIDTH, 3 * WIDTH> by_gates[BLOCKS];
  typename R::template Product<H, F> by_hidden;
  float inner_bias[D], gates_bias[3 * D], logits_bias[F];
  All<D> deter, before_deter, before_inner, inner;
  All<F> stoch, before_stoch, logits;
  All<H> before_of_deter, before_of_stoch, before_hidden, hidden;
  All<BLOCKS * CHUNK> inputs;
  All<3 * D> gates;

  void take(const float* parameters, float eps, float share) {
    const typename R::Parameters x(parameters);
    R::take_norms(x.norms, eps), R::uniform = share;
    std::memcpy(logits_bias, x.logits_bias, sizeof logits_bias);
    std::memcpy(inner_bias, x.inner_bias, sizeof inner_bias);
    std::memcpy(gates_bias, x.gates_bias, sizeof gates_bias);
    by_deter.pack([&](int, int j, int n) { return x.deter[n * D + j]; });
    by_stoch.pack([&](int, int j, int n) { return x.stoch[n * F + j]; });
    by_known.pack([&](int, int j, int n) { return x.known[n * D + j]; });
    by_hidden.pack([&](int, int j, int n) { return x.hidden[n * H + j]; });
    for (int b = 0; b < BLOCKS; b++) {
      by_inner[b].pack([&](int, int j, int n) { return x.inner[(b * CHUNK + j) * WIDTH + n]; });
      by_gates[b].pack([&](int, int j, int n) { return x.gates[(b * WIDTH + j) * 3 * WIDTH + n]; });
    }
  }

  void recur(const float* old_deter, float* is, typename R::Activations& saved, const float* gate) {
    constexpr int L = LANES<V>;
    for (int b = 0; b < BLOCKS; b++)
      for (int i = 0; i < WIDTH; i += L) {
        auto at = [&](int which) {
          const int place = (b * 3 + which) * WIDTH + i;
          return load<V>(gate + place) + load<V>(gates_bias + place);
        };
        const V reset = sigmoid<V>(at(0)), candidate = at(1), update = sigmoid<V>(at(2) - 1.0f);
        const V proposed = 2.0f * sigmoid<V>(2.0f * reset * candidate) - 1.0f, old = load<V>(old_deter + b * WIDTH + i);
        store(is + b * WIDTH + i, old + update * (proposed - old));
        store(saved.reset + b * WIDTH + i, reset), store(saved.candidate + b * WIDTH + i, candidate);
        store(saved.proposed + b * WIDTH + i, proposed), store(saved.update + b * WIDTH + i, update);
      }
  }

  // probabilities of the latents' classes, and a one-hot sample of each latent: the class with the largest probability
  // times e^noise
  void draw(const float* of, const float* exp_noise, float* probs, float* drawn) {
    constexpr int L = LANES<K>;
    for (int first = 0; first < F; first += CLASSES) {
      float largest = of[first], best = -1;
      for (int i = 1; i < CLASSES; i++) largest = of[first + i] > largest ? of[first + i] : largest;
      K sum = {};
      for (int i = first; i < first + CLASSES; i += L) {
        const K e = exponential<K>(load<K>(of + i) - largest);
        store(probs + i, e), sum += e;
      }
      const float share = 1 / total<L>(sum)[0];
      int which = first;
      for (int i = first; i < first + CLASSES; i++) {
        probs[i] *= share;
        const float score = (probs[i] * (1 - R::uniform) + R::uniform / CLASSES) * exp_noise[i];
        if (score > best) best = score, which = i;
        drawn[i] = 0;
      }
      drawn[which] = 1;
    }
  }

  // one step of ``count`` sequences; pointers are to those of the first
  void step(int count, const float* keep, const float* action, const float* encoded, const float* exp_noise,
            typename R::Activations* saved, float* deters, float* stochs) {
    for (int r = 0; r < count; r++) {
      R::template scale<D>(before_deter[r], deter[r], keep[r]);
      R::template scale<F>(before_stoch[r], stoch[r], keep[r]);
    }
    by_deter.template along<N, D, 0>(before_deter[0], before_of_deter[0]);
    by_stoch.template along<N, F, 0>(before_stoch[0], before_of_stoch[0]);
    for (int r = 0; r < count; r++) {
      float mixed[R::MIXED];
      R::of_deter.forward(1, before_of_deter[r], 0, saved[r].z_deter, saved[r].scales, mixed, 0);
      R::of_stoch.forward(1, before_of_stoch[r], 0, saved[r].z_stoch, saved[r].scales + 1, mixed + H, 0);
      std::memcpy(mixed + 2 * H, action + r * E, 4 * E);
      for (int b = 0; b < BLOCKS; b++) {
        float* input = inputs[r] + b * CHUNK;
        std::memcpy(input, before_deter[r] + b * WIDTH, 4 * WIDTH);
        std::memcpy(input + WIDTH, mixed, sizeof mixed);
      }
      std::memcpy(saved[r].inputs, inputs[r], sizeof inputs[r]);
    }
    for (int b = 0; b < BLOCKS; b++)
      by_inner[b].template along<N, BLOCKS * CHUNK, 0, D>(inputs[0] + b * CHUNK, before_inner[0] + b * WIDTH);
    for (int r = 0; r < count; r++) {
      R::template add<D>(before_inner[r], inner_bias);
      R::of_inner.forward(1, before_inner[r], 0, saved[r].z_inner, saved[r].scales + 2, inner[r], 0);
      std::memcpy(saved[r].inner, inner[r], sizeof inner[r]);
    }
    for (int b = 0; b < BLOCKS; b++)
      by_gates[b].template along<N, D, 0, 3 * D>(inner[0] + b * WIDTH, gates[0] + b * 3 * WIDTH);
    for (int r = 0; r < count; r++) recur(before_deter[r], deter[r], saved[r], gates[r]);
    by_known.template along<N, D, 0>(deter[0], before_hidden[0]);
    for (int r = 0; r < count; r++) {
      R::template add<H>(before_hidden[r], encoded + r * H);
      R::of_hidden.forward(1, before_hidden[r], 0, saved[r].z_hidden, saved[r].scales + 3, hidden[r], 0);
      std::memcpy(saved[r].hidden, hidden[r], sizeof hidden[r]);
    }
    by_hidden.template along<N, H, 0>(hidden[0], logits[0]);
    for (int r = 0; r < count; r++) {
      R::template add<F>(logits[r], logits_bias);
      draw(logits[r], exp_noise + r * F, saved[r].probs, stoch[r]);
      std::memcpy(deters + r * D, deter[r], sizeof deter[r]), std::memcpy(stochs + r * F, stoch[r], sizeof stoch[r]);
    }
  }
};

template <class R> struct Backward : R {
  using R::BLOCKS, R::D, R::H, R::E, R::CLASSES, R::F, R::WIDTH, R::CHUNK;
  static constexpr int N = R::TOGETHER;
  template <int W> using All = typename R::template All<W>;
  using V = typename R::V;
  typename R::template Product<H, D> to_deter, to_known;
  typename R::template Product<H, F> to_stoch;
  typename R::template Product<WIDTH, CHUNK> to_inputs[BLOCKS];
  typename R::template Product<3 * WIDTH, WIDTH> to_inner[BLOCKS];
  typename R::template Product<F, H> to_hidden;
  All<D> deter, inner, before_inner, product_gradient;  // deter and stoch: gradients that the previous step receives
  All<F> stoch, logits;
  All<H> hidden, before_hidden, before_of_deter, before_of_stoch;
  All<3 * D> gates;
  All<BLOCKS * CHUNK> inputs;

  void take(const float* parameters, float share) {
    const typename R::Parameters x(parameters);
    R::take_norms(x.norms, 0), R::uniform = share;
    to_deter.pack([&](int, int j, int n) { return x.deter[j * D + n]; });
    to_stoch.pack([&](int, int j, int n) { return x.stoch[j * F + n]; });
    to_known.pack([&](int, int j, int n) { return x.known[j * D + n]; });
    to_hidden.pack([&](int, int j, int n) { return x.hidden[j * H + n]; });
    for (int b = 0; b < BLOCKS; b++) {
      to_inputs[b].pack([&](int, int j, int n) { return x.inner[(b * CHUNK + n) * WIDTH + j]; });
      to_inner[b].pack([&](int, int j, int n) { return x.gates[(b * WIDTH + n) * 3 * WIDTH + j]; });
    }
  }

  void step(int count, const float* keep, const float* deter_gradient, const float* probs_gradient,
            const typename R::Activations* saved, typename R::Gradients* gradients) {
    constexpr int L = LANES<V>;
    for (int r = 0; r < count; r++) {
      for (int first = 0; first < F; first += CLASSES) {
        float mean = 0;
        for (int i = first; i < first + CLASSES; i++) {
          logits[r][i] = probs_gradient[r * F + i] + (1 - R::uniform) * stoch[r][i];
          mean += saved[r].probs[i] * logits[r][i];
        }
        for (int i = first; i < first + CLASSES; i++) logits[r][i] = saved[r].probs[i] * (logits[r][i] - mean);
      }
      std::memcpy(gradients[r].logits, logits[r], sizeof logits[r]);
    }
    to_hidden.template along<N, F, 0>(logits[0], hidden[0]);
    for (int r = 0; r < count; r++) {
      R::of_hidden.backward(1, hidden[r], 0, saved[r].z_hidden, saved[r].scales + 3, before_hidden[r], nullptr);
      std::memcpy(gradients[r].hidden, before_hidden[r], sizeof before_hidden[r]);
    }
    to_known.template along<N, H, 0>(before_hidden[0], product_gradient[0]);
    for (int r = 0; r < count; r++)
      for (int b = 0; b < BLOCKS; b++)
        for (int i = 0; i < WIDTH; i += L) {
          const int at = b * WIDTH + i;
          const V gradient =
              load<V>(deter[r] + at) + load<V>(product_gradient[r] + at) + load<V>(deter_gradient + r * D + at);
          const V reset = load<V>(saved[r].reset + at), candidate = load<V>(saved[r].candidate + at);
          const V proposed = load<V>(saved[r].proposed + at), update = load<V>(saved[r].update + at);
          const V proposed_gradient = gradient * update * (1.0f - proposed * proposed);
          const V old = load<V>(&saved[r].inputs[b][i]);
          float* gate = gates[r] + 3 * b * WIDTH + i;
          store(gate, proposed_gradient * candidate * reset * (1.0f - reset));
          store(gate + WIDTH, proposed_gradient * reset);
          store(gate + 2 * WIDTH, gradient * (proposed - old) * update * (1.0f - update));
          store(deter[r] + at, gradient * (1.0f - update));
        }
    for (int b = 0; b < BLOCKS; b++)
      to_inner[b].template along<N, 3 * D, 0, D>(gates[0] + 3 * b * WIDTH, inner[0] + b * WIDTH);
    for (int r = 0; r < count; r++) {
      R::of_inner.backward(1, inner[r], 0, saved[r].z_inner, saved[r].scales + 2, before_inner[r], nullptr);
      std::memcpy(gradients[r].gates, gates[r], sizeof gates[r]);
      std::memcpy(gradients[r].inner, before_inner[r], sizeof before_inner[r]);
    }
    for (int b = 0; b < BLOCKS; b++)
      to_inputs[b].template along<N, D, 0, BLOCKS * CHUNK>(before_inner[0] + b * WIDTH, inputs[0] + b * CHUNK);
    for (int r = 0; r < count; r++) {
      float mixed[R::MIXED] = {};
      for (int b = 0; b < BLOCKS; b++) {
        R::template add<WIDTH>(deter[r] + b * WIDTH, inputs[r] + b * CHUNK);
        R::template add<R::MIXED>(mixed, inputs[r] + b * CHUNK + WIDTH);
      }
      R::of_deter.backward(1, mixed, 0, saved[r].z_deter, saved[r].scales, before_of_deter[r], nullptr);
      R::of_stoch.backward(1, mixed + H, 0, saved[r].z_stoch, saved[r].scales + 1, before_of_stoch[r], nullptr);
      std::memcpy(gradients[r].deter, before_of_deter[r], sizeof before_of_deter[r]);
      std::memcpy(gradients[r].stoch, before_of_stoch[r], sizeof before_of_stoch[r]);
      std::memcpy(gradients[r].action, mixed + 2 * H, 4 * E);
    }
    to_deter.template along<N, H, 0>(before_of_deter[0], product_gradient[0]);
    to_stoch.template along<N, H, 0>(before_of_stoch[0], stoch[0]);
    for (int r = 0; r < count; r++) {
      R::template add<D>(deter[r], product_gradient[r]);
      R::template scale<D>(deter[r], deter[r], keep[r]);
      R::template scale<F>(stoch[r], stoch[r], keep[r]);
    }
  }
};

// ---- the functions that Python calls; sequences are (steps, n, ...)

using The = Recurrence<SIZES>;

static long groups(long n) { return (n + The::TOGETHER - 1) / The::TOGETHER; }

// f(first sequence, number of sequences) for every group of a thread
template <class F> static void each_group(long first, long last, long n, F f) {
  for (long g = first; g < last; g++) {
    const long start = g * The::TOGETHER, count = n - start;
    f(start, (int)(count < The::TOGETHER ? count : The::TOGETHER));
  }
}

// lengths of the axes that depend on the network
extern "C" void sizes(SIZES_ARGUMENTS) {
  const int64_t all[] = {sizeof(The::Activations) / 4, sizeof(The::Gradients) / 4, The::NORMS, The::PARAMETERS,
                         The::F, WIDE};
  std::memcpy(lengths, all, sizeof all);
}

extern "C" void observe(OBSERVE_ARGUMENTS) {
  in_threads(groups(n), threads, [&](int, long from, long to) {
    auto net = std::make_unique<Forward<The>>();
    net->take(parameters, eps, uniform);
    each_group(from, to, n, [&](long first, int count) {
      std::memcpy(net->deter, deter + first * The::D, 4l * count * The::D);
      std::memcpy(net->stoch, stoch + first * The::F, 4l * count * The::F);
      for (long t = 0; t < steps; t++) {
        const long at = t * n + first;
        net->step(count, keep + at, embedded + at * The::E, encoded + at * The::H, exp_noise + at * The::F,
                  (The::Activations*)activations + at, deters + at * The::D, stochs + at * The::F);
      }
    });
  });
}

extern "C" void observe_backward(OBSERVE_BACKWARD_ARGUMENTS) {
  in_threads(groups(n), threads, [&](int k, long from, long to) {
    auto net = std::make_unique<Backward<The>>();
    net->take(parameters, uniform);
    each_group(from, to, n, [&](long first, int count) {
      std::memset(net->deter, 0, sizeof net->deter), std::memset(net->stoch, 0, sizeof net->stoch);
      for (long t = steps - 1; t >= 0; t--) {
        const long at = t * n + first;
        net->step(count, keep + at, deters_gradient + at * The::D, probs_gradient + at * The::F,
                  (const The::Activations*)activations + at, (The::Gradients*)activation_gradients + at);
      }
      std::memcpy(deter_gradient + first * The::D, net->deter, 4l * count * The::D);
      std::memcpy(stoch_gradient + first * The::F, net->stoch, 4l * count * The::F);
    });
    net->give_norms(norms_gradient + (long)k * The::NORMS);
  });
}
