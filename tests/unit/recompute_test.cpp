// Promise: zero::recompute() is the plain call but for memory: the same values and gradients, bit for bit, of whatever
// a function may depend on; what would be another function in backward is an error. Without an engine;
// tests/dist/recompute_engine_test.cpp has one.
#include <ATen/autocast_mode.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "support/errors.h"
#include "support/filled.h"
#include "support/temporary_folder.h"
#include "zero/recompute.h"

namespace zero::testing::recompute_test {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor leaf(at::IntArrayRef sizes, double phase) { return filled(sizes, phase).requires_grad_(true); }

bool same(const Tensor& a, const Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || (a.sizes() == b.sizes() && a.equal(b)));
}

KeptResults kept_results = KeptResults::kNone;  ///< what call() keeps

/// What a program computes and the gradients of its leaves, plain and recomputed, whatever is kept. `program(again)`
/// makes everything anew, and returns what is to be compared.
/// `rounded`: gradients that are summed in another order may differ in their last bits.
void expect_alike(const std::function<Tensors(bool again)>& program, bool rounded = false) {
  const Tensors plain = program(false);
  for (const KeptResults keep : {KeptResults::kNone, KeptResults::kAttention, KeptResults::kProducts}) {
    kept_results = keep;
    SCOPED_TRACE(static_cast<int>(keep));
    const Tensors recomputed = program(true);
    ASSERT_EQ(plain.size(), recomputed.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (rounded && plain[i].defined() && recomputed[i].defined() && plain[i].is_floating_point()) {
        EXPECT_TRUE(plain[i].allclose(recomputed[i], 1e-5, 1e-6)) << "value " << i;
        continue;
      }
      EXPECT_TRUE(same(plain[i], recomputed[i])) << "value " << i << "\n" << plain[i] << "\n" << recomputed[i];
    }
  }
  kept_results = KeptResults::kNone;
}

template <class F, class... Inputs>
auto call(bool again, F f, Inputs... inputs) {
  if (again) return recompute_with({.keep = kept_results}, f, inputs...);
  return detail::call(f, inputs...);
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout = 0) {
    up = register_module("up", torch::nn::Linear(5, 7));
    down = register_module("down", torch::nn::Linear(7, 5));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    drop = register_module("drop", torch::nn::Dropout(dropout));
    int i = 0;
    const at::NoGradGuard no_grad;
    for (auto& p : parameters()) p.copy_(filled(p.sizes(), ++i));
  }
  Tensor forward(const Tensor& x) { return x + drop(down(at::gelu(norm(up(x))))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Block);

Tensors everything_of(const Block& block) {
  Tensors all;
  for (const auto& p : block->parameters()) all.push_back(p.grad());
  for (const auto& b : block->buffers()) all.push_back(b);
  return all;
}

TEST(Recompute, BlocksWithDropoutAndRunningStatistics) {
  expect_alike([](bool again) {
    at::manual_seed(3);
    Block first(0.5), second(0.5);
    Tensor x = leaf({4, 5}, 0.3);
    Tensor y = call(again, second, call(again, first, x * 2));
    const Tensor after = at::rand({3});  // the program's own numbers go on where they would
    y.pow(2).sum().backward();
    const Tensor later = at::rand({3});
    Tensors all = everything_of(first);
    for (const Tensor& t : everything_of(second)) all.push_back(t);
    all.insert(all.end(), {y, x.grad(), after, later});
    return all;
  });
}

TEST(Recompute, InputsAndResultsOfEveryKind) {
  using Several = std::vector<Tensor>;
  expect_alike(
      [](bool again) {
        Tensor a = leaf({3, 4}, 0.1), b = leaf({3, 4}, 0.2), c = leaf({4}, 0.3), d = leaf({4}, 0.4);
        const Tensor mask = at::arange(12).view({3, 4}).remainder(2).to(at::kBool),
                     index = at::tensor({2, 0}, at::kLong);
        const auto f = [](const Tensor& x, std::optional<Tensor> bias, std::optional<Tensor> none, Several more,
                          Tensor m, Tensor i, double scale, const std::string& word) {
          EXPECT_FALSE(none.has_value());
          EXPECT_EQ(word, "word");
          const Tensor y = at::where(m, x * scale, x.exp()) + *bias;
          return std::make_tuple(y.index_select(0, i), Several{y * more[0], y.sum(1) + more[1].sum()}, y.argmax(1), 7,
                                 std::optional<Tensor>(y.detach()));
        };
        const auto [rows, several, best, seven, detached] =
            call(again, f, a * b, std::optional<Tensor>(c * 1), std::optional<Tensor>(), Several{b, d * 3}, mask, index,
                 0.5, std::string("word"));
        EXPECT_EQ(seven, 7);
        EXPECT_FALSE(best.requires_grad());
        EXPECT_FALSE(detached->requires_grad());
        (rows.sum() + several[0].pow(2).sum() + several[1].prod()).backward();
        return Tensors{rows, several[0], several[1], best, *detached, a.grad(), b.grad(), c.grad(), d.grad()};
      },
      /*rounded=*/true);
}

TEST(Recompute, ResultsOfWhichOthersAreMade) {
  const auto f = [](const Tensor& a) {
    const Tensor u = a * 2;
    return std::make_pair(u, u * 5);
  };
  expect_alike([&](bool again) {
    Tensor x = leaf({3}, 0.1);
    auto [u, v] = call(again, f, x);
    u.register_hook([](const Tensor& g) { return g * 10; });
    u.retain_grad();
    (u + v).sum().backward();
    return Tensors{x.grad(), u.grad()};
  });
  expect_alike([&](bool again) {
    Tensor x = leaf({3}, 0.1);
    const auto [u, v] = call(again, f, x * 1);
    using torch::autograd::grad;
    const auto both = grad({(u + v).sum()}, {u}, {}, /*retain_graph=*/true), one = grad({v.sum()}, {u}, {}, true);
    v.sum().backward();
    return Tensors{both[0], one[0], x.grad()};
  });
  expect_alike([](bool again) {  // each may go its own way
    Tensor x = leaf({3}, 0.1), w = leaf({3}, 0.2);
    const auto [p, q] = call(
        again, [=](const Tensor& a) { return std::make_pair(a.sin() * w, a.cos()); }, x * 1);
    p.sum().backward();
    q.sum().backward();
    return Tensors{x.grad(), w.grad()};
  });
  expect_alike([](bool again) {  // of one operator
    Tensor x = leaf({2, 3}, 0.1);
    const auto [p, q] = call(
        again,
        [](const Tensor& a) {
          const auto parts = a.exp().unbind();
          return std::make_pair(parts[0], parts[1]);
        },
        x * 1);
    (p * 2 + q.pow(2)).sum().backward();
    return Tensors{x.grad()};
  });
  Tensor x = leaf({2, 3}, 0.1);
  const auto tangled = [](const Tensor& a) {
    const auto parts = a.exp().unbind();
    return std::make_pair(parts[0], parts[0] * parts[1]);
  };
  expect_said([&] { recompute(tangled, x * 1); }, "return a clone() of it");
}

TEST(Recompute, ResultsThatShareMemoryAreNotChangedInPlace) {
  Tensor x = leaf({2, 2}, 0.1);
  const Tensor y = x * 1;
  const auto views = [](const Tensor& a) {
    const Tensor t = a * 2;
    return std::make_pair(t, t[0]);
  };
  auto [t, v] = recompute(views, y);
  EXPECT_THROW(v.zero_(), c10::Error);
  EXPECT_THROW(t.zero_(), c10::Error);
  Tensor row = recompute([](const Tensor& a) { return a[0]; }, y);
  EXPECT_THROW(row.zero_(), c10::Error);
  EXPECT_EQ(row.const_data_ptr(), y.const_data_ptr());
  // What is returned as it came is what it was, and so is what is returned twice.
  expect_alike([](bool again) {
    Tensor z = leaf({4}, 0.2);
    Tensor same_again = call(
        again, [](const Tensor& a) { return a; }, z * 1);
    same_again.mul_(3);
    auto [one, two] = call(
        again,
        [](const Tensor& a) {
          const Tensor u = a.sin();
          return std::make_pair(u, u);
        },
        same_again);
    two.mul_(2);
    one.sum().backward();
    return Tensors{z.grad(), one};
  });
}

TEST(Recompute, WhatAFunctionDoesBesides) {
  expect_alike([](bool again) {  // a module inside another part writes its statistics once
    Block block;
    const auto outer = [=](const Tensor& a) { return call(again, block, a) * 2; };
    Tensor x = leaf({4, 5}, 0.3);
    call(again, outer, x * 1).sum().backward();
    return everything_of(block);
  });
  Tensor w = leaf({3}, 0.1);
  const auto inner_loop = [w](const Tensor& a) {
    Tensor b = a.detach().requires_grad_();
    (b * w).sum().backward();
    return a - b.grad();
  };
  expect_said([&] { recompute(inner_loop, w * 2); }, "runs a backward() of its own");
  expect_alike([](bool again) {
    Tensor u = leaf({3}, 0.1);
    const auto by_grad = [u](const Tensor& a) {
      const Tensor b = a.detach().requires_grad_();
      return a - torch::autograd::grad({(b * u).sum()}, {b})[0];
    };
    call(again, by_grad, u * 2).sum().backward();
    return Tensors{u.grad()};
  });
  expect_alike([](bool again) {  // each run begins with the function as it was given
    Tensor u = leaf({3}, 0.1);
    Tensor y = call(
        again, [c = 1](const Tensor& a) mutable { return a * ++c; }, u * 1);
    y.sum().backward();
    return Tensors{y, u.grad()};
  });
  Tensors gradients;
  expect_alike([&](bool again) {  // casts that autocast keeps
    torch::nn::Linear linear(4, 4);
    {
      const at::NoGradGuard no_grad;
      for (auto& p : linear->parameters()) p.copy_(filled(p.sizes(), 1));
    }
    at::autocast::set_autocast_enabled(at::kCPU, true);
    Tensor y = linear(filled({2, 4}, 0.2));
    for (int i = 0; i < 2; ++i) y = call(again, linear, y);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    y.sum().backward();
    gradients.push_back(linear->weight.grad());
    return Tensors{y};
  });
  // A cast that is kept sums its gradients in bf16, of 8 bits.
  EXPECT_TRUE(gradients[0].allclose(gradients[1], 0.02, 0.02)) << gradients[0] << gradients[1];
}

TEST(Recompute, WhatIsCapturedGetsItsGradient) {
  expect_alike([](bool again) {
    Tensor weight = leaf({4, 4}, 0.1), x = leaf({2, 4}, 0.2), frozen = filled({4, 4}, 0.5);
    Tensor shared = (weight * 2).tanh();  // of before, with a graph, and used outside as well
    int weight_hooks = 0, shared_hooks = 0;
    weight.register_hook([&](const Tensor& g) {
      ++weight_hooks;
      return g * 3;
    });
    shared.register_hook([&](const Tensor& g) {
      ++shared_hooks;
      return g + 1;
    });
    shared.retain_grad();
    const auto f = [=](const Tensor& in) { return at::sigmoid(in.matmul(shared).matmul(frozen) + in.matmul(weight)); };
    Tensor y = call(again, f, call(again, f, x * 1));
    (y.sum() + shared.sum() + weight.pow(2).sum()).backward();
    EXPECT_EQ(weight_hooks, 1);
    EXPECT_EQ(shared_hooks, 1);
    return Tensors{y, weight.grad(), shared.grad(), x.grad()};
  });
}

TEST(Recompute, InsideOneAnother) {
  expect_alike([](bool again) {
    at::manual_seed(5);
    Block a(0.3), b(0.3), c(0.3);
    Tensor x = leaf({4, 5}, 0.3);
    const auto inner = [=](const Tensor& in) { return call(again, c, call(again, b, in)); };
    const auto outer = [=](const Tensor& in) { return call(again, inner, call(again, a, in)) * 2; };
    Tensor y = call(again, outer, x * 1);
    y.pow(2).mean().backward();
    Tensors all{y, x.grad()};
    for (const auto& block : {a, b, c}) {
      for (const auto& p : block->parameters()) all.push_back(p.grad());
    }
    return all;
  });
}

TEST(Recompute, SeveralBackwardsAndOutputsThatNobodyUses) {
  expect_alike([](bool again) {
    Tensor w = leaf({4, 4}, 0.1), x = leaf({2, 4}, 0.2);
    const auto f = [=](const Tensor& in) {
      const Tensor h = in.matmul(w);
      return std::make_pair(h.tanh(), h.exp());
    };
    const auto [used, unused] = call(again, f, x * 1);
    used.sum().backward({}, /*retain_graph=*/true);
    used.pow(2).sum().backward();
    const auto [first, second] = call(again, f, x * 1);
    first.sum().backward({}, true);
    second.sum().backward();
    const auto by_grad = torch::autograd::grad({call(again, f, x * 1).second.sum()}, {w});
    return Tensors{w.grad(), x.grad(), by_grad[0]};
  });
}

TEST(Recompute, ResultsThatAreInputs) {
  expect_alike([](bool again) {
    Tensor w = leaf({4}, 0.1), x = leaf({4}, 0.2);
    const auto f = [=](const Tensor& in) { return std::make_tuple(in, w, in.view({2, 2}), in * w); };
    const Tensor given = x * 2;
    auto [same_input, same_weight, view, product] = call(again, f, given);
    const Tensor sum = same_input.sum() + same_weight.pow(2).sum() + view.pow(3).sum() + product.sum();
    sum.backward();
    return Tensors{sum, w.grad(), x.grad(), same_input, same_weight};
  });
}

TEST(Recompute, TheGuide) {
  const auto run = [](bool again) {
    std::vector<Block> blocks{Block(), Block()};
    Tensor x = leaf({4, 5}, 0.3) * 1, keys = leaf({5, 5}, 0.1), values = leaf({5, 5}, 0.2), mask = filled({4, 5}, 2);
    if (again) {
      // [guide: blocks]
      for (auto& block : blocks) x = zero::recompute(block, x);
      // [end]
    } else {
      for (auto& block : blocks) x = block(x);
    }
    // [guide: several]
    const auto attend = [=](const Tensor& in, const Tensor& mask, double scale) {
      const Tensor weights = at::softmax(in.matmul(keys) * scale + mask, -1);
      return std::make_pair(weights.matmul(values), weights);
    };
    const auto [out, weights] = zero::recompute(attend, x, mask, 0.5);
    // [end]
    (out.sum() + weights.pow(2).sum()).backward();
    return Tensors{out, keys.grad(), values.grad(), blocks[0]->up->weight.grad()};
  };
  expect_alike(run);
}

TEST(Recompute, TheGuideOnHomes) {
  const TemporaryFolder folder;
  expect_alike([&](bool again) {
    const std::string& local_disk = folder.path();
    // [guide: homes]
    zero::set_activation_home(zero::activations_on_nvme({.folder = local_disk}));
    // [end]
    const Tensor w = leaf({64, 64}, 0.1), x = leaf({512, 64}, 0.2);
    const auto f = [=](const Tensor& in) { return at::linear(in, w).sin(); };
    Tensor y = call(again, f, call(again, f, x * 1));
    y.pow(2).sum().backward();
    const auto home = std::dynamic_pointer_cast<NvmeActivations>(activation_home());
    EXPECT_EQ(home->traffic().written_nbytes > 0, again);
    set_activation_home(nullptr);
    return Tensors{y, w.grad(), x.grad()};
  });
}

TEST(Recompute, WithoutGradientsItIsAPlainCall) {
  int calls = 0;
  const auto f = [&](const Tensor& in) {
    ++calls;
    return in * 2;
  };
  Tensor w = leaf({3}, 0.1);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(recompute(f, w).requires_grad());
  }
  EXPECT_FALSE(recompute(f, filled({3}, 0.2)).requires_grad());
  EXPECT_EQ(calls, 2);
  recompute(f, w).sum().backward();
  EXPECT_EQ(calls, 4);
}

TEST(Recompute, AnotherFunctionInBackwardIsAnError) {
  Tensor w = leaf({4}, 0.1), other = leaf({4}, 0.2);
  double factor = 2;
  int calls = 0;
  const auto fails = [&](const char* words, const std::function<Tensor(const Tensor&)>& f,
                         const std::function<void()>& meanwhile) {
    SCOPED_TRACE(words);
    const Tensor y = recompute(f, w * 1);
    meanwhile();
    expect_said([&] { y.sum().backward(); }, words);
  };
  fails(
      "gave other values for its output 0", [&](const Tensor& x) { return x * factor; }, [&] { factor = 3; });
  fails(
      "ran other operators", [&](const Tensor& x) { return calls++ % 2 ? x * 2 : x + x; }, [] {});
  calls = 0;
  fails(
      "used a parameter that it did not use in forward",
      [&](const Tensor& x) { return calls++ % 2 ? x + other * 0 : x + w * 0; }, [] {});
  fails(
      "was changed in place between forward and backward", [&](const Tensor& x) { return x * other; },
      [&] {
        const at::NoGradGuard no_grad;
        other.add_(1);
      });
  calls = 0;
  fails(
      "ran other operators", [&](const Tensor& x) { return calls++ ? x.detach() * other : x * other; }, [] {});
  calls = 0;
  fails(
      "did not use an input or a parameter", [&](const Tensor& x) { return x * (calls++ ? other.detach() : other); },
      [] {});
  {
    const Tensor x = w * 1;
    expect_said([&] { recompute([&](Tensor in) { return in.mul_(2) * w; }, filled({4}, 0.1)); },
                "changes its input 0 in place");
    expect_said([&] { recompute([](Tensor in) { return in.mul_(2); }, x); }, "changes its input 0 in place");
    const Tensor y = recompute([](const Tensor& in) { return in.sin(); }, x);
    const at::NoGradGuard no_grad;
    x.add_(1);
    EXPECT_THROW(y.sum().backward(), c10::Error);  // as for any tensor that autograd has kept
  }
  {
    const Tensor y = recompute([](const Tensor& in) { return in.pow(3); }, w * 1);
    expect_said([&] { torch::autograd::grad({y.sum()}, {w}, {}, /*retain_graph=*/true, /*create_graph=*/true); },
                "gradients of gradients (create_graph) are not built");
  }
  // By wish, what differs from run to run: gradients are those of the second run.
  factor = 2;
  const Tensor y = recompute_with(
      {.compare = false}, [&](const Tensor& x) { return x * factor; }, w * 1);
  factor = 5;
  w.mutable_grad().reset();
  y.sum().backward();
  EXPECT_TRUE(same(w.grad(), at::full({4}, 5.0)));
}

TEST(Recompute, AnExceptionInBackwardLeavesEverythingInPlace) {
  Tensor w = leaf({4}, 0.1);
  int hooks = 0;
  w.register_hook([&](const Tensor&) { ++hooks; });
  bool fails = false;
  const auto f = [&](const Tensor& x) {
    if (fails) throw std::runtime_error("of the function");
    return (x * w).sin();
  };
  const at::Tensor state = at::globalContext().defaultGenerator(c10::kCPU).get_state();
  Tensor y = recompute(f, w * 1);
  fails = true;
  EXPECT_THROW(y.sum().backward({}, /*retain_graph=*/true), std::runtime_error);
  fails = false;
  y.sum().backward();
  EXPECT_EQ(hooks, 1);
  EXPECT_TRUE(at::globalContext().defaultGenerator(c10::kCPU).get_state().equal(state));
}

/// Bytes that libtorch's allocator has given out.
class Allocated : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    now += size;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0, peak = 0;
};

TEST(Recompute, KeepsTheInputsOfAPartOnly) {
  constexpr std::int64_t kRows = 512, kParts = 6;
  const auto run = [&](bool again) {
    auto allocated = std::make_shared<Allocated>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocated);
    Tensor x = at::zeros({kRows, 64}).requires_grad_(true);
    const auto f = [](const Tensor& in) {
      Tensor y = in;
      for (int i = 0; i < 10; ++i) y = y.sin() * y.cos();
      return y;
    };
    Tensor y = x * 1;
    for (int i = 0; i < kParts; ++i) y = call(again, f, y);
    const std::int64_t kept = allocated->now;
    allocated->peak = 0;
    y.sum().backward();
    return std::pair(kept, allocated->peak);
  };
  const std::int64_t one = kRows * 64 * 4;
  const auto [kept, peak] = run(true);
  const auto [kept_plain, peak_plain] = run(false);
  EXPECT_GT(kept_plain, kParts * 20 * one);
  EXPECT_LT(kept, (kParts + 4) * one);
  EXPECT_LT(peak, (kParts + 40) * one);  // one part with its gradients beside the inputs of all
  EXPECT_GT(peak_plain, 2 * peak);
}

// ---- results that are kept ---------------------------------------------------------------------------------------

/// A part of everything that is kept, with steps between that are not.
struct AttentionBlock {
  Tensor qkv = leaf({24, 8}, 0.1), out = leaf({8, 8}, 0.2), bias = leaf({8}, 0.3), filter = leaf({2, 2, 3}, 0.4);

  Tensor operator()(const Tensor& x) const {  // [2, 6, 8]
    const auto heads = [](const Tensor& part) { return part.view({2, 6, 2, 4}).transpose(1, 2); };
    const Tensors parts = at::linear(at::layer_norm(x, {8}), qkv).split(8, 2);
    const Tensor y = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0, true);
    const Tensor z = at::linear(at::gelu(y.transpose(1, 2).reshape({2, 6, 8})), out, bias);
    const Tensor scores = z.matmul(x.transpose(1, 2)).softmax(-1);  // a product of two activations
    return x + scores.matmul(z) + at::conv1d(z.view({6, 2, 8}), filter, {}, 1, 1).view({2, 6, 8});
  }
  Tensors gradients() const { return {qkv.grad(), out.grad(), bias.grad(), filter.grad()}; }
};

TEST(RecomputeKept, AttentionProductsAndConvolutions) {
  expect_alike([](bool again) {
    const AttentionBlock first, second;
    const Tensor x = leaf({2, 6, 8}, 0.5);
    Tensor y = call(again, second, call(again, first, x * 1));
    y.pow(2).sum().backward({}, /*retain_graph=*/true);
    y.sum().backward();
    Tensors all = first.gradients();
    for (const Tensor& t : second.gradients()) all.push_back(t);
    all.insert(all.end(), {y, x.grad()});
    return all;
  });
}

TEST(RecomputeKept, UnderAutocastAndInsideOneAnother) {
  expect_alike([](bool again) {
    const AttentionBlock block;
    const Tensor x = leaf({2, 6, 8}, 0.5), w = leaf({8, 8}, 0.6);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const auto outer = [&](const Tensor& in) {
      const Tensor y = at::linear(in, w).to(at::kFloat);
      return at::linear(call(again, block, y).to(at::kFloat), w);
    };
    const Tensor y = call(again, outer, x * 1);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    y.to(at::kFloat).pow(2).sum().backward();
    Tensors all = block.gradients();
    all.insert(all.end(), {y, x.grad(), w.grad()});
    return all;
  });
}

TEST(RecomputeKept, WhatIsChangedInPlaceIsComputedAgain) {
  expect_alike([](bool again) {
    const Tensor w = leaf({5, 5}, 0.1), v = leaf({5, 5}, 0.2), x = leaf({4, 5}, 0.3);
    const auto inside = [=](const Tensor& in) {
      Tensor y = at::linear(in, w);
      y.relu_();
      Tensor z = at::linear(y, v);
      return z.mul_(2).sin();
    };
    const auto last = [=](const Tensor& in) { return at::linear(in.cos(), w); };
    Tensor y = call(again, last, call(again, inside, x * 1));
    y.add_(1);  // the memory of a result that was kept
    y.sin().sum().backward();
    return Tensors{y, w.grad(), v.grad(), x.grad()};
  });
}

TEST(RecomputeKept, WhatIsChangedInPlaceThroughAViewIsComputedAgain) {
  // matmul and linear give views of their product, with versions of their own.
  expect_alike([](bool again) {
    const Tensor w = leaf({5, 5}, 0.1), v = leaf({5, 5}, 0.2), b = leaf({5}, 0.4), x = leaf({2, 3, 5}, 0.3);
    const auto magnitudes = [=](const Tensor& in) { return at::matmul(in, w).abs_() * 1.0; };  // the same once more
    const auto clamped = [=](const Tensor& in) {
      return at::matmul(in, in.transpose(1, 2)).clamp_(-0.1, 0.2).matmul(in);
    };
    const auto other = [=](const Tensor& in) {
      return at::linear(in.transpose(0, 1), v, b).mul_(0.5).transpose(0, 1) + in;
    };
    const auto last = [=](const Tensor& in) { return at::matmul(in.cos(), v); };
    Tensor y = call(again, last, call(again, other, call(again, clamped, call(again, magnitudes, x * 1))));
    y += x;
    y.sin().sum().backward();
    return Tensors{y, w.grad(), v.grad(), b.grad(), x.grad()};
  });
  const Tensor x = at::tensor({-1.0f, 2.0f}).view({1, 1, 2}).requires_grad_(true), w = at::eye(2);
  recompute_with(
      {.keep = KeptResults::kProducts}, [=](const Tensor& in) { return at::matmul(in, w).abs_() * 1.0; }, x * 1)
      .sum()
      .backward();
  EXPECT_TRUE(same(x.grad(), at::tensor({-1.0f, 1.0f}).view({1, 1, 2})));
}

/// The addresses of a product in both runs.
std::vector<const void*> addresses(KeptResults keep, bool attention) {
  std::vector<const void*> seen;
  const Tensor w = leaf({8, 8}, 0.1);
  const auto f = [&](const Tensor& in) {
    const Tensor y = attention ? at::scaled_dot_product_attention(in, in, in) : at::linear(in, w);
    seen.push_back(y.const_data_ptr());
    return y.sin();
  };
  const Tensor x = leaf({1, 2, 4, 8}, 0.2);
  const Tensor y = recompute_with({.keep = keep}, f, x * 1);
  Tensors between;
  for (int i = 0; i < 8; ++i) between.push_back(at::zeros({1, 2, 4, 8}));  // takes the memory, if it was given back
  y.sum().backward();
  return seen;
}

TEST(RecomputeKept, IsNotComputedAgain) {
  // What is computed again may lie there, too; tests/dist/flops_profiler_test.cpp counts operations.
  for (const auto& [keep, attention] :
       {std::pair(KeptResults::kAttention, true), {KeptResults::kProducts, true}, {KeptResults::kProducts, false}}) {
    const auto seen = addresses(keep, attention);
    ASSERT_EQ(seen.size(), 2u);
    EXPECT_EQ(seen[0], seen[1]) << static_cast<int>(keep) << (attention ? " attention" : " product");
  }
}

TEST(RecomputeKept, IsFreeWhenThePartIsThrough) {
  const Tensor w = leaf({8, 8}, 0.1), x = leaf({4, 8}, 0.2);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> products;
  const auto f = [&](const Tensor& in) {
    const Tensor y = at::linear(in, w);
    products.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(y.storage().unsafeGetStorageImpl()));
    return y.sin();
  };
  const Tensor loss = recompute_with({.keep = KeptResults::kProducts}, f, x * 1).sum();
  ASSERT_EQ(products.size(), 1u);
  EXPECT_FALSE(products[0].expired());
  loss.backward();
  EXPECT_TRUE(products[0].expired());  // the loss is still there
}

TEST(RecomputeKept, AnotherFunctionIsAnErrorStill) {
  const Tensor w = leaf({4, 4}, 0.1), x = leaf({2, 4}, 0.2);
  double factor = 1;
  int calls = 0;
  const auto fails = [&](const char* words, const std::function<Tensor(const Tensor&)>& f) {
    SCOPED_TRACE(words);
    factor = 1;
    calls = 0;
    const Tensor y = recompute_with({.keep = KeptResults::kProducts}, f, x * 1);
    factor = 2;
    expect_said([&] { y.sum().backward(); }, words);
  };
  // Its result would be the one of before, and its gradient another.
  fails("gave other values to aten::mm", [&](const Tensor& in) { return at::linear(in * factor, w); });
  fails("ran aten::bmm in place of aten::mm", [&](const Tensor& in) {
    return calls++ ? at::bmm(in.unsqueeze(0), w.t().unsqueeze(0)).squeeze(0) : at::mm(in, w.t());
  });
  fails("ran more operators", [&](const Tensor& in) {
    const Tensor y = at::mm(in, w);
    return calls++ ? y + at::mm(in.detach(), w.detach()) * 0 : y;
  });
  fails("ran fewer operators", [&](const Tensor& in) {
    const Tensor y = at::mm(in, w);
    return calls++ ? y : y + at::mm(in.detach(), w.detach()) * 0;
  });
  // The same values and shapes, by other arguments.
  const Tensor other = leaf({4, 4}, 0.5), wide = leaf({4, 8}, 0.6), bias = leaf({4}, 0.7), bias2 = leaf({4}, 0.8);
  fails("gave other values to aten::mm",
        [&](const Tensor& in) { return calls++ ? in.mm(other).mm(w) : in.mm(w).mm(other); });
  fails("gave other values to aten::mm",
        [&](const Tensor& in) { return in.mm(calls++ ? wide.slice(1, 4, 8) : wide.slice(1, 0, 4)); });
  fails("gave other values to aten::addmm",
        [&](const Tensor& in) { return at::linear(in, w, calls++ ? bias2 : bias); });
  fails("gave other values to aten::addmm",
        [&](const Tensor& in) { return at::addmm(bias, in, w, 1, calls++ ? 2.0 : 1.0); });
  fails("gave other values to aten::convolution", [&](const Tensor& in) {
    const std::int64_t dilation = calls++ ? 2 : 1;
    return at::conv1d(in.view({1, 2, 4}), at::ones({2, 2, 3}), {}, 1, dilation, dilation).view({2, 4});
  });
  const Tensor q = leaf({1, 2, 4, 8}, 0.2);
  for (const KeptResults keep : {KeptResults::kAttention, KeptResults::kProducts}) {
    bool causal = false;
    const Tensor y = recompute_with(
        {.keep = keep}, [&](const Tensor& in) { return at::scaled_dot_product_attention(in, in, in, {}, 0, causal); },
        q * 1);
    causal = true;
    expect_said([&] { y.sum().backward(); }, "gave other values to aten::_scaled_dot_product_flash_attention_for_cpu");
  }
  for (const RecomputeOptions& options : {RecomputeOptions{.compare = false, .keep = KeptResults::kProducts},
                                          RecomputeOptions{.preserve_random = false, .keep = KeptResults::kProducts}}) {
    expect_said(
        [&] {
          recompute_with(
              options, [&](const Tensor& in) { return at::mm(in, w); }, x * 1);
        },
        "they need `compare` and `preserve_random`");
  }
  // Nothing is left behind.
  const Tensor y = at::linear(x, w);
  EXPECT_TRUE(same(y, at::mm(x, w.t())));
}

}  // namespace
}  // namespace zero::testing::recompute_test
