// The interception of parameters by operators, without ranks: an observer that keeps parameters released
// except while an operator uses them.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "intercept/compat.h"
#include "intercept/debug_observer.h"
#include "intercept/gradient_hook.h"
#include "intercept/parameter_handle.h"
#include "intercept/view_operators.h"
#include "support/odd_model.h"
#include "zero/errors.h"

namespace zero::intercept::intercept_test {
namespace {

/// Copies a parameter in before each use and takes it away after it.
class StrictObserver : public UseObserver {
 public:
  struct Kept {
    c10::intrusive_ptr<ParameterHandle> handle;
    at::Tensor parameter;
    std::vector<char> values;
    at::Tensor live;
    int pins = 0;
  };

  void adopt(const std::string& name, at::Tensor parameter) {
    const int index = static_cast<int>(kept_.size());
    auto& kept = kept_.emplace_back();
    kept.handle = c10::make_intrusive<ParameterHandle>(name, index, index);
    kept.parameter = parameter;
    const at::Tensor dense =
        parameter.is_non_overlapping_and_dense() ? parameter.detach() : parameter.detach().contiguous();
    const auto strides = dense.strides().vec();
    kept.values.resize(dense.nbytes());
    if (!kept.values.empty()) std::memcpy(kept.values.data(), dense.const_data_ptr(), kept.values.size());
    kept.handle->adopt(parameter, parameter.scalar_type(), strides, kept.values.size(), at::kCPU, this);
  }
  void before_use(ParameterHandle& handle) override {
    auto& kept = kept_[handle.parameter()];
    ++uses;
    if (kept.pins++ > 0) return;
    if (fail) {
      --kept.pins;
      throw CommError("rank 1 is dead");
    }
    kept.live = at::empty({static_cast<std::int64_t>(kept.values.size())}, at::kByte);
    if (!kept.values.empty()) std::memcpy(kept.live.mutable_data_ptr(), kept.values.data(), kept.values.size());
    handle.attach(kept.live.mutable_data_ptr());
  }
  void after_use(ParameterHandle& handle) noexcept override {
    auto& kept = kept_[handle.parameter()];
    if (--kept.pins > 0) return;
    handle.release();
    kept.live.reset();
  }
  void before_write(ParameterHandle& handle, const char* op) override { throw ModelError(op + (" " + handle.name())); }

  std::deque<Kept> kept_;
  int uses = 0;
  bool fail = false;
};

struct Gradients {
  float loss = 0;
  std::map<std::string, at::Tensor> by_name;
};

Gradients run(testing::OddModel& model) {
  at::manual_seed(5);
  const at::Tensor loss = model->loss(testing::micro_batch_tokens(1));
  loss.backward();
  Gradients gradients{loss.item<float>(), {}};
  for (const auto& item : model->named_parameters()) {
    gradients.by_name[item.key()] = item.value().grad().defined() ? item.value().grad().clone() : at::Tensor();
  }
  for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
  return gradients;
}

TEST(Intercept, GradientsAreBitEqualWithEveryParameterReleasedBetweenUses) {
  at::manual_seed(1);
  testing::OddModel model;
  const Gradients expected = run(model);
  StrictObserver observer;
  std::set<const void*> seen;
  for (const auto& item : model->named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) observer.adopt(item.key(), item.value());
  }
  DebugObserver watcher;
  const Gradients got = run(model);
  EXPECT_EQ(expected.loss, got.loss);
  EXPECT_GT(observer.uses, 20);
  EXPECT_GT(watcher.operators_checked(), 0);
  EXPECT_EQ(watcher.take_violations(), std::vector<std::string>{});
  for (const auto& [name, gradient] : expected.by_name) {
    const at::Tensor& other = got.by_name.at(name);
    ASSERT_EQ(gradient.defined(), other.defined()) << name;
    if (!gradient.defined()) continue;
    EXPECT_TRUE(at::equal(gradient, other)) << name;
    EXPECT_FALSE(has_parameter_key(other)) << name;
  }
  for (auto& kept : observer.kept_) EXPECT_FALSE(kept.handle->attached()) << kept.handle->name();
}

class OneParameter : public ::testing::Test {
 protected:
  void SetUp() override {
    parameter = at::arange(12, at::kFloat).view({3, 4}).clone().requires_grad_();
    observer.adopt("layer.weight", parameter);
  }
  StrictObserver observer;
  at::Tensor parameter;
};

TEST_F(OneParameter, ViewsNeedNoGatherAndReachTheParameter) {
  const at::Tensor view = parameter.t().narrow(0, 1, 2).unsqueeze(0);
  EXPECT_EQ(observer.uses, 0);
  EXPECT_EQ(ParameterHandle::of(view)->name(), "layer.weight");
  EXPECT_EQ(view.sum().item<float>(), 1 + 5 + 9 + 2 + 6 + 10);
  EXPECT_EQ(observer.uses, 1);
}

TEST_F(OneParameter, ViewsAreNoViolationUnderAnyName) {
  // detach() is recorded as "detach", others as "aten::t".
  for (const char* name : {"detach", "aten::detach", "t", "aten::t", "aten::view"}) {
    EXPECT_TRUE(is_view_operator(name)) << name;
  }
  for (const char* name : {"aten::sum", "sum", "aten::copy_", "copy_", "mine::view", ""}) {
    EXPECT_FALSE(is_view_operator(name)) << name;
  }
  DebugObserver watcher;
  const at::Tensor alias = parameter.detach();
  EXPECT_EQ(ParameterHandle::of(alias)->name(), "layer.weight");
  EXPECT_TRUE(watcher.take_violations().empty());
}

TEST_F(OneParameter, CopiesCarryNoKey) {
  for (const at::Tensor& copy :
       {parameter.clone(), parameter + 1, parameter.to(at::kDouble), parameter.t().contiguous()}) {
    EXPECT_FALSE(has_parameter_key(copy));
    EXPECT_EQ(ParameterHandle::of(copy), nullptr);
  }
  EXPECT_TRUE(has_parameter_key(parameter.detach()));  // shares the memory
}

TEST_F(OneParameter, ListsAndOptionalListsAreSeen) {
  at::NoGradGuard no_grad;
  EXPECT_EQ(at::cat({parameter, parameter}).sum().item<float>(), 132);
  EXPECT_EQ(at::stack({parameter.detach()}).sum().item<float>(), 66);
  EXPECT_EQ(parameter.index({at::tensor({1})}).sum().item<float>(), 4 + 5 + 6 + 7);
}

TEST_F(OneParameter, WritesAreRefusedWithTheOperatorsName) {
  at::NoGradGuard no_grad;
  try {
    parameter.narrow(0, 0, 1).mul_(2);
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_EQ(std::string(error.what()), "aten::mul_ layer.weight");
  }
  EXPECT_THROW(parameter.fill_(0), ModelError);
  EXPECT_THROW(parameter.resize_({2}), ModelError);
  parameter.requires_grad_(false);  // no data is touched
}

TEST_F(OneParameter, ErrorsOfAGatherReachTheCaller) {
  observer.fail = true;
  EXPECT_THROW(parameter.sum(), CommError);
  observer.fail = false;
  EXPECT_EQ(parameter.sum().item<float>(), 66);
  const at::Tensor loss = (parameter * 2).square().sum();
  observer.fail = true;
  EXPECT_THROW((parameter * loss).sum().backward(), CommError);
}

TEST_F(OneParameter, RawAccessThrowsWithTheName) {
  for (int i = 0; i < 2; ++i) {
    try {
      (void)parameter.data_ptr();
      FAIL();
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("layer.weight"), std::string::npos);
    }
    EXPECT_EQ(parameter.sum().item<float>(), 66);  // and again after a use
  }
  EXPECT_EQ(parameter.nbytes(), 48u);
}

TEST_F(OneParameter, GradientHookTakesTheGradientOncePerBackward) {
  int calls = 0, drops = 0;
  float sum = 0;
  auto hook = std::make_unique<GradientHook>(parameter, "layer.weight",
                                             GradientCalls{[&](at::Tensor& gradient) {
                                                             ++calls;
                                                             sum += gradient.sum().item<float>();
                                                             EXPECT_TRUE(in_backward());
                                                           },
                                                           [&](bool dropped) { drops += dropped; }});
  for (const bool armed : {false, true}) {
    calls = 0;
    sum = 0;
    if (armed) hook->arm();
    ((parameter * 2).sum() + (parameter * 3).sum()).backward();  // used twice, summed by autograd
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(sum, 12 * 5);
    EXPECT_EQ(hook->state(), GradientState::kMarked);
    EXPECT_FALSE(in_backward());
  }
  (parameter * 2).sum().backward({}, /*retain_graph=*/false, /*create_graph=*/true);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(drops, 0);
  hook.reset();
  EXPECT_FALSE(parameter.grad().defined());
  (parameter * 2).sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(parameter.grad().defined());
}

TEST_F(OneParameter, TheMarkerSaysThatTheGradientIsElsewhere) {
  int drops = 0;
  GradientHook hook(parameter, "layer.weight",
                    GradientCalls{[](at::Tensor&) {}, [&](bool dropped) { drops += dropped; }});
  EXPECT_FALSE(parameter.grad().defined());  // nothing was taken yet
  EXPECT_EQ(hook.state(), GradientState::kArmed);
  (parameter * 2).sum().backward();
  EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { (void)parameter.grad().norm(); }, [&] { parameter.mutable_grad().clamp_(-1, 1); },
           [&] { parameter.mutable_grad().data().mul_(2); }, [&] { (void)(parameter.grad() + 1); },
           [&] { (void)parameter.grad().clone(); }, [&] { (void)parameter.grad().const_data_ptr(); }}) {
    try {
      use();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("layer.weight"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(hook.state(), GradientState::kMarked);
  // What zero_grad() does, in either way.
  parameter.mutable_grad().detach_().zero_();
  EXPECT_EQ(hook.state(), GradientState::kDropped);
  (parameter * 2).sum().backward();
  EXPECT_EQ(drops, 1);
  hook.mark();
  parameter.mutable_grad().reset();
  EXPECT_EQ(hook.state(), GradientState::kDropped);
  (parameter * 2).sum().backward();
  EXPECT_EQ(drops, 2);
  EXPECT_EQ(hook.state(), GradientState::kMarked);
  parameter.mutable_grad() = at::ones_like(parameter);
  EXPECT_EQ(hook.state(), GradientState::kSet);
}

TEST_F(OneParameter, RetiredParameterIsAnOrdinaryTensor) {
  auto& kept = observer.kept_[0];
  observer.before_use(*kept.handle);
  kept.handle->retire(parameter, std::make_shared<at::Tensor>(kept.live), "gone");
  kept.live.reset();
  EXPECT_FALSE(has_parameter_key(parameter));
  at::NoGradGuard no_grad;
  parameter.add_(1);
  EXPECT_EQ(parameter.sum().item<float>(), 78);
}

}  // namespace
}  // namespace zero::intercept::intercept_test
