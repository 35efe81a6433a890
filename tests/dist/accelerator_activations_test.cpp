// What backward needs of parts that run again, of a module on an accelerator, in host memory: bits, memory, and waits.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device/device_stream.h"
#include "dist/accelerator.h"
#include "offload/activations.h"
#include "support/bits.h"
#include "support/to_device.h"
#include "zero/zero.h"

namespace zero::testing::accelerator_activations_test {
namespace {

/// Parts with inputs of more than 64 KiB.
struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 6; ++i)
      layers.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(190, 190)));
  }
  at::Tensor loss(const at::Tensor& in) {
    at::Tensor x = in;
    for (auto& layer : layers) {
      x = recompute([&layer](const at::Tensor& value) { return at::tanh(at::tanh(layer(value))); }, x);
    }
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Deep);

struct Trained {
  std::string bits;
  std::int64_t peak_nbytes = 0;  ///< of the device
  std::int64_t host_nbytes = 0;  ///< for what was kept
};

Trained train_deep(const Group& group, at::Device device, const std::string& more, const Setting& setting) {
  at::set_num_threads(1);
  at::manual_seed(3);
  Deep model;
  to_device(*model, device);
  Setting own = setting;
  own.more += more;
  auto engine = initialize(model, json_of(own), {.group = group});
  reset_peak_device_memory(device);
  std::uint64_t hash = kNoBits;
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < own.accumulation; ++micro) {
      const at::Tensor x =
          at::arange(128 * 190, at::kFloat).view({128, 190}).add(group.rank() + 7 * step + micro).sin();
      const at::Tensor loss = model->loss(x.to(device).requires_grad_(true));
      engine.backward(loss);
      engine.step();
      hash = hash_with(hash, loss.detach().cpu());
    }
  }
  for (const auto& item : model->named_parameters()) hash = hash_with(hash, engine.full_weight(item.key()).cpu());
  finish();
  return {fmt::format("{:x}", hash), device_memory(device).peak_allocated_nbytes,
          engine.memory_report()[MemoryKind::kOffload].peak_nbytes};
}

TEST(Accelerator, ActivationsMayBeInHostMemory) {
  const std::vector<std::string> ways = {
      R"(, "activation_checkpointing": {"cpu_checkpointing": true})",
      R"(, "bf16": {"enabled": false})",  // nowhere else
  };
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const auto lines = lines_of(ranks, [&](const Group& group) {
      std::vector<std::string> results;
      for (const char* const states : {"cpu", "none"}) {
        for (int seed = 0; seed < (is_slow() ? 50 : 4); ++seed) {
          const Setting setting{.stage = seed % 4, .accumulation = 1 + seed % 2, .states = states};
          std::vector<Trained> trained;
          for (const std::string& way : ways) {
            use_kernels(true);
            const auto device = device_with(static_cast<std::uint64_t>(100 * seed + group.rank()));
            trained.push_back(train_deep(group, device, way, setting));
          }
          const Trained &away = trained[0], &there = trained[1];
          if (away.bits != there.bits) throw std::logic_error(fmt::format("other bits, seed {}, {}", seed, states));
          if (away.host_nbytes < 4 * 97'280 || there.host_nbytes != 0)
            throw std::logic_error(fmt::format("{} and {} bytes of the host", away.host_nbytes, there.host_nbytes));
          results.push_back(away.bits);
        }
      }
      return results;
    });
    EXPECT_EQ(lines.size(), is_slow() ? 100u : 8u);
  }
}

TEST(Accelerator, ActivationsInHostMemoryLeaveTheDevice) {
  const auto lines = lines_of(1, [](const Group&) {
    const auto device = device_with(3);
    std::vector<std::string> results;
    const auto peak_of = [&](const std::shared_ptr<ActivationHome>& home) {
      set_activation_home(home);
      reset_peak_device_memory(device);
      const at::Tensor in = at::ones({64, 4096}, at::TensorOptions(device)).requires_grad_(true);
      at::Tensor x = in;
      for (int i = 0; i < 12; ++i) x = recompute([](const at::Tensor& value) { return at::tanh(at::tanh(value)); }, x);
      x.sum().backward();
      finish();
      set_activation_home(nullptr);
      results.push_back(fmt::format("{:x}", hash_with(kNoBits, in.grad().cpu())));
      return device_memory(device).peak_allocated_nbytes;
    };
    constexpr std::int64_t kNbytes = 64 * 4096 * 4;
    const std::int64_t there = peak_of(nullptr), away = peak_of(activations_in_host_memory());
    // 12 inputs, in place of which two are on their way and one comes back.
    if (away > there - 5 * kNbytes) throw std::logic_error(fmt::format("{} and {}", away, there));
    return results;
  });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], lines[1]);
}

/// Whether tensors of sizes that vary come back as they were when they were kept, whatever the program does since.
bool come_back(const at::Device& device, const std::shared_ptr<ActivationHome>& home) {
  const auto made = [&](int number) {
    const at::Tensor host = at::arange(3000 + 700 * (number % 3), at::kFloat).mul(number + 1).sin();
    return number % 2 == 0 ? host : host.view({100, -1}).t().to(at::kBFloat16);
  };
  bool is_well = true;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<ActivationHome::Kept>> kept;
    for (int i = 0; i < 7; ++i) {
      const at::Tensor there = made(10 * round + i).to(device);
      kept.push_back(home->keep(there));
      there.zero_();  // and its memory is somebody else's
    }
    for (int i = 7; i-- > 0;) {
      const at::Tensor back = kept[static_cast<std::size_t>(i)]->take(), expected = made(10 * round + i);
      is_well = is_well && back.strides() == expected.strides() && back.cpu().equal(expected);
      back.zero_();
      if (i % 2 == 1) continue;
      is_well = is_well && kept[static_cast<std::size_t>(i)]->take().cpu().equal(expected);  // again
    }
    kept[3]->take();
    kept.clear();  // the one before it was on its way, and its memory is somebody else's
    std::vector<at::Tensor> others;
    for (int i = 0; i < 7; ++i) others.push_back(made(10 * round + i).to(device));
    for (int i = 0; i < 7; ++i)
      is_well = is_well && others[static_cast<std::size_t>(i)].cpu().equal(made(10 * round + i));
  }
  return is_well;
}

TEST(Accelerator, ActivationsComeBackInEveryOrder) {
  const auto lines = lines_of(1, [](const Group&) {
    std::vector<std::string> results;
    for (int seed = 0; seed < (on_gpu() ? 2 : is_slow() ? 200 : 8); ++seed) {
      const auto device = device_with(static_cast<std::uint64_t>(seed));
      std::int64_t held = 0;
      {
        const auto home = offload::activations_in_host_memory(1, [&](std::int64_t nbytes) { held += nbytes; });
        if (home->keep(at::ones({100})) != nullptr) throw std::logic_error("one of the CPU");
        if (!come_back(device, home)) throw std::logic_error(fmt::format("seed {}", seed));
        if (held <= 0) throw std::logic_error("nothing is held");
      }
      if (held != 0) throw std::logic_error(fmt::format("{} bytes are held", held));
      finish();
      results.push_back("well");
    }
    return results;
  });
  EXPECT_FALSE(lines.empty());
}

TEST(Accelerator, EachWaitOfActivationsInHostMemoryIsNeeded) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  using Kind = std::pair<int, int>;
  const auto holds_without = [](const Kind& left_out, std::uint64_t seed) {
    const auto results = spawn(1, [&](const Group&) {
      simulated::start({.seed = seed, .leave_out = [&](const simulated::Wait& wait) {
                          return Kind{wait.waiting, wait.awaited} == left_out;
                        }});
      const bool is_well = come_back(simulated::device(), offload::activations_in_host_memory(1, {}));
      simulated::finish();
      if (!is_well) throw std::logic_error("other values");
    });
    return results[0].ok;
  };
  // The stream that computes is 0, the one of copies 1.
  for (const Kind& kind : {Kind{0, 1}, Kind{1, 0}}) {
    bool is_caught = false;
    for (std::uint64_t seed = 0; seed < 40 && !is_caught; ++seed) is_caught = !holds_without(kind, seed);
    EXPECT_TRUE(is_caught) << "nothing is lost without the waits of " << kind.first << " for " << kind.second;
  }
  EXPECT_TRUE(holds_without(Kind{-7, -7}, 1));
}

}  // namespace
}  // namespace zero::testing::accelerator_activations_test
