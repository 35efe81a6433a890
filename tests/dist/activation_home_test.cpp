// Promise: where a part's inputs and kept results are until backward (memory, NVMe, in parts on model-parallel ranks)
// changes no bit; a disk that fails, lies or is full, and ranks that keep other values, are errors.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "doubles/faulty_files.h"
#include "doubles/lying_files.h"
#include "doubles/memory_files.h"
#include "offload/activations.h"
#include "support/errors.h"
#include "support/filled.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/lm/models.h"
#include "zero/zero.h"

namespace zero::testing::activation_home_test {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

std::vector<std::shared_ptr<NvmeActivations>> homes(const TemporaryFolder& folder, io::FileSystem& memory) {
  memory.make_folders("/nv");
  return {activations_on_nvme({.folder = folder.file("nv"), .min_nbytes = 1}),
          activations_on_nvme({.folder = folder.file("nv"), .min_nbytes = 1, .buffers = 2, .block_nbytes = 4096}),
          offload::activations_on_nvme({.folder = "/nv", .min_nbytes = 1, .buffers = 3}, memory)};
}

void expect_same(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.scalar_type(), b.scalar_type());
  EXPECT_EQ(a.sizes(), b.sizes());
  EXPECT_EQ(a.strides(), b.strides());
  EXPECT_TRUE(a.equal(b));
}

TEST(NvmeActivations, GiveBackWhatTheyWereGiven) {
  const TemporaryFolder folder;
  io::MemoryFileSystem memory;
  for (const auto& home : homes(folder, memory)) {
    SCOPED_TRACE(home->description());
    Tensors tensors;
    for (int i = 0; i < 13; ++i) {
      tensors.push_back(filled({i + 1, 700 + i}, i));
      tensors.push_back(filled({3, i + 1, 50}, i).to(at::kBFloat16).transpose(0, 2));
    }
    tensors.push_back(at::arange(5000, at::kLong));
    tensors.push_back(filled({99, 99}, 1).gt(0));
    std::vector<std::shared_ptr<ActivationHome::Kept>> kept;
    for (const Tensor& tensor : tensors) {
      const Tensor changed = tensor.clone();
      kept.push_back(home->keep(changed));
      ASSERT_TRUE(kept.back());
      if (changed.is_floating_point()) changed.add_(1);  // as it was
    }
    for (std::size_t i = tensors.size(); i-- > 0;) expect_same(kept[i]->take(), tensors[i]);
    for (std::size_t i = 0; i < tensors.size(); i += 3) expect_same(kept[i]->take(), tensors[i]);
    for (std::size_t i = 1; i < tensors.size(); i += 2) kept[i].reset();
    for (std::size_t i = 1; i < tensors.size(); i += 2) kept[i] = home->keep(tensors[i]);
    for (const std::size_t i : {7, 3, 12, 0, 27, 1, 7}) expect_same(kept[i]->take(), tensors[i]);
    const ActivationTraffic traffic = home->traffic();
    EXPECT_GT(traffic.read_nbytes, 0);
    EXPECT_GT(traffic.from_memory_nbytes, 0);
  }
}

TEST(NvmeActivations, RoomIsUsedAgain) {
  io::MemoryFileSystem memory;
  memory.make_folders("/nv");
  std::int64_t counted = 0;
  {
    const auto home = offload::activations_on_nvme({.folder = "/nv", .min_nbytes = 1}, memory,
                                                   [&](std::int64_t nbytes) { counted += nbytes; });
    io::FaultyFileSystem files(memory);
    const auto counting = offload::activations_on_nvme({.folder = "/nv", .min_nbytes = 1}, files);
    std::uint64_t mutations = 0;
    for (int step = 0; step < 5; ++step) {
      std::vector<std::shared_ptr<ActivationHome::Kept>> kept;
      for (int i = 0; i < 8; ++i) {
        kept.push_back(home->keep(filled({i + 1, 1024}, step)));
        kept.push_back(counting->keep(filled({i + 1, 1024}, step)));
      }
      for (std::size_t i = kept.size(); i-- > 0;)
        expect_same(kept[i]->take(), filled({static_cast<int>(i / 2) + 1, 1024}, step));
      if (step % 2) std::reverse(kept.begin(), kept.end());
      for (auto& one : kept) one.reset();
      // Writes, and no more room of the disk once there is enough.
      const std::uint64_t now = files.count();
      EXPECT_EQ(now - mutations, step == 0 ? 2 + 8 + 8 : 8u) << "step " << step;
      mutations = now;
    }
    EXPECT_GT(counted, 0);
    EXPECT_LE(counted, 4 * 8 * 4096);  // the largest in each buffer
  }
  EXPECT_EQ(counted, 0);
}

TEST(NvmeActivations, WhatIsNotForThemStaysInMemory) {
  const TemporaryFolder folder;
  const auto home = activations_on_nvme({.folder = folder.path(), .min_nbytes = 4096});
  EXPECT_TRUE(home->keep(filled({1024}, 0)));
  for (const Tensor& tensor :
       {Tensor(), filled({1023}, 0), filled({1, 64}, 0).expand({64, 64}), filled({64, 128}, 0).slice(1, 0, 64),
        filled({64, 64}, 0).to_sparse(), at::empty({64, 64}, at::TensorOptions(at::kMeta))}) {
    EXPECT_FALSE(home->keep(tensor));
  }
  EXPECT_NE(error_of<ConfigError>([] { activations_on_nvme({}); }), "");
  EXPECT_NE(error_of<ConfigError>([&] { activations_on_nvme({.folder = folder.path(), .buffers = 1}); }), "");
  EXPECT_NE(error_of<IoError>([] { activations_on_nvme({.folder = "/proc/nothing/there"}); }), "");
}

/// A step of six parts, in the way of a training program.
Tensors train(const std::shared_ptr<ActivationHome>& home, KeptResults keep = KeptResults::kProducts) {
  at::set_num_threads(1);
  const Tensor w = filled({64, 64}, 0.1).requires_grad_(true), x = filled({128, 64}, 0.2).requires_grad_(true);
  const Tensor mask = filled({128, 64}, 0.3).gt(0);
  const auto part = [=](const Tensor& in, const Tensor& bits) { return at::linear(in.sin() * bits, w).tanh(); };
  Tensor y = x * 1;
  for (int i = 0; i < 6; ++i) {
    y = recompute_with({.keep = keep, .home = home}, part, y, mask);
    if (i == 3) y.mul_(0.5);  // what was kept of it is computed again
  }
  const Tensor loss = y.pow(2).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  return {y, w.grad(), x.grad()};
}

TEST(ActivationHome, ChangesNoBit) {
  const TemporaryFolder folder;
  io::MemoryFileSystem memory;
  for (const KeptResults keep : {KeptResults::kNone, KeptResults::kProducts}) {
    const Tensors plain = train(nullptr, keep);
    for (const auto& home : homes(folder, memory)) {
      const Tensors there = train(home, keep);
      for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(there[i])) << i;
      EXPECT_GT(home->traffic().written_nbytes, 5 * 128 * 64 * 4);
      set_activation_home(home);
      const Tensors by_default = train(nullptr, keep);
      set_activation_home(nullptr);
      for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(by_default[i])) << i;
    }
  }
}

TEST(ActivationHome, MemoryIsFreeInForward) {
  const TemporaryFolder folder;
  const auto home = activations_on_nvme({.folder = folder.path(), .min_nbytes = 1});
  const Tensor w = filled({8, 8}, 0.1).requires_grad_(true);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
  const auto part = [&](const Tensor& in) {
    for (const Tensor& one : {in, at::linear(in, w)})
      memory.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(one.storage().unsafeGetStorageImpl()));
    return at::linear(in, w).sin();
  };
  Tensor y = filled({4, 8}, 0.2) * w.sum();
  for (int i = 0; i < 3; ++i) y = recompute_with({.keep = KeptResults::kProducts, .home = home}, part, y);
  for (const auto& one : memory) EXPECT_TRUE(one.expired());
  y.sum().backward();
  EXPECT_TRUE(w.grad().defined());
}

TEST(ActivationHome, EveryFailureOfTheDiskIsAnError) {
  io::MemoryFileSystem memory;
  memory.make_folders("/nv");
  const NvmeActivationOptions options{.folder = "/nv", .min_nbytes = 1, .buffers = 2};
  std::uint64_t mutations = 0, reads = 0;
  {
    io::FaultyFileSystem files(memory);
    train(offload::activations_on_nvme(options, files));
    mutations = files.count();
    reads = files.read_count();
  }
  EXPECT_GT(mutations, 10u);
  EXPECT_GT(reads, 10u);
  const auto fails = [&](const auto& choose, std::string_view what) {
    io::FaultyFileSystem files(memory);
    choose(files);
    const std::string error = error_of<IoError>([&] { train(offload::activations_on_nvme(options, files)); });
    ASSERT_TRUE(files.happened()) << what;
    EXPECT_TRUE(mentions(error, "/nv")) << what << ": " << error;
    if (error.empty()) return;
    EXPECT_TRUE(mentions(error, "activations in '/nv': tensor ") || files.count() < 3) << what << ": " << error;
  };
  for (std::uint64_t i = 0; i < mutations; ++i) {
    fails([&](auto& files) { files.fail_mutation(i, i % 2 ? EIO : ENOSPC); }, fmt::format("mutation {}", i));
  }
  for (std::uint64_t i = 0; i < reads; ++i)
    fails([&](auto& files) { files.fail_read(i, EIO); }, fmt::format("read {}", i));
  int lies = 0, found = 0;
  for (std::uint64_t i = 0; i < reads; ++i) {
    io::LyingFileSystem files(memory, i);
    const std::string error = error_of<IoError>([&] { train(offload::activations_on_nvme(options, files)); });
    lies += files.has_lied();
    found += mentions(error, "the disk gave back other bytes than were written");
  }
  EXPECT_GT(lies, 5);
  EXPECT_EQ(found, lies);
}

TEST(PartitionedActivations, EachRankKeepsItsPart) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      const auto home = partitioned_activations(group, /*min_nbytes=*/1);
      for (const Tensor& tensor : {filled({7, 33}, 0.1), filled({3}, 0.2), filled({50, 3}, 0.3).t(),
                                   at::arange(77, at::kLong), filled({64, 64}, 0.4).to(at::kBFloat16)}) {
        const auto kept = home->keep(tensor);
        EXPECT_EQ(kept != nullptr, ranks > 1);
        if (kept) expect_same(kept->take(), tensor);
      }
      const Tensors plain = train(nullptr), parts = train(home);
      for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(parts[i])) << i;
      if (ranks == 1) return;
      EXPECT_TRUE(mentions(error_of<ModelError>([&] { home->keep(filled({100}, group.rank())); }),
                           "is not the same on all model-parallel ranks"));
    }));
  }
}

struct Curve {
  std::vector<double> losses, norms;
  bool operator==(const Curve&) const = default;
};

/// `model_parallel`: all ranks are those of one copy.
Curve train_gpt(Group group, int stage, const char* precision, const std::string& more, bool model_parallel = false) {
  at::set_num_threads(1);
  at::manual_seed(3);
  GPT model(GPTOptions{.layers = 3,
                       .dim = 64,
                       .heads = 2,
                       .vocab = 31,
                       .seq = 512,
                       .dropout = 0.1,
                       .recompute_every = 1,
                       .recompute_keep = KeptResults::kProducts});
  const std::string json = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
           "bf16": {{"enabled": {}}}, "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
           "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}}{}}})",
      precision == std::string("bf16"), stage, more);
  InitializeOptions options{.group = group};
  if (model_parallel) {
    options.model_parallel = group;
    options.placement = [](std::string_view) { return Placement(); };
  }
  auto engine = initialize(model, json, options);
  EXPECT_EQ(activation_home() != nullptr, !more.empty() && (!model_parallel || group.size() > 1));
  Curve curve;
  while (engine.global_steps() < 2) {
    const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank();
    const Tensor tokens = at::arange(index * 7, index * 7 + 512).remainder(31).view({1, 512});
    const Tensor loss = model->loss(tokens, tokens);
    engine.backward(loss);
    engine.step();
    curve.losses.push_back(loss.item<double>());
    curve.norms.push_back(engine.grad_norm());
  }
  if (const auto nvme = std::dynamic_pointer_cast<NvmeActivations>(activation_home())) {
    EXPECT_GT(nvme->traffic().written_nbytes, 4 * 3 * 512 * 64 * 2);  // of micro-batches, inputs alone
  }
  return curve;
}

TEST(ActivationHome, OfAnEngine) {
  const TemporaryFolder folder;
  for (const auto& [ranks, stage, precision] :
       {std::tuple(1, 0, "fp32"), {2, 3, "bf16"}, {2, 2, "fp32"}, {3, 3, "fp32"}, {4, 1, "bf16"}}) {
    SCOPED_TRACE(fmt::format("{} ranks, stage {}, {}", ranks, stage, precision));
    expect_all_ok(spawn(ranks, [&](Group group) {
      const Curve plain = train_gpt(group, stage, precision, "");
      EXPECT_FALSE(activation_home());
      const Curve there =
          train_gpt(group, stage, precision,
                    fmt::format(R"(, "zerotorch": {{"offload_activations": {{"device": "nvme", "nvme_path": "{}"}}}})",
                                folder.file("nv")));
      EXPECT_FALSE(activation_home());
      EXPECT_EQ(there, plain);
    }));
  }
}

TEST(ActivationHome, OfAnEngineWithModelParallelRanks) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      const Curve plain = train_gpt(group, 2, "fp32", "", /*model_parallel=*/true);
      const Curve parts =
          train_gpt(group, 2, "fp32", R"(, "activation_checkpointing": {"partition_activations": true})",
                    /*model_parallel=*/true);
      EXPECT_EQ(parts, plain);
    }));
  }
}

}  // namespace
}  // namespace zero::testing::activation_home_test
