#include "support/causal_lm_golden.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/weight_files.h"

namespace zero::testing {

const std::string kGoldens = ZERO_SOURCE_DIR "/tests/data/causal_lm/";

Tensors read_tensors(const std::string& path) {
  checkpoint::WeightFiles files(io::system_files(), path);
  Tensors tensors;
  for (std::size_t i = 0; i < files.entries().size(); ++i) {
    const auto& entry = files.entries()[i];
    at::Tensor tensor = at::empty(entry.shape, entry.dtype == checkpoint::ElementType::kI64 ? at::kLong : at::kFloat);
    files.read(i, {static_cast<std::byte*>(tensor.mutable_data_ptr()), files.nbytes(i)});
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

void write_safetensors(const std::string& path, const Tensors& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", "F32"},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {data.size(), data.size() + tensor.nbytes()}}};
    data.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  const std::string text = header.dump();
  const std::uint64_t size = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), 8);
  out << text << data;
}

void expect_near(const at::Tensor& got, const at::Tensor& want, const std::string& name) {
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  const double largest = want.abs().max().item<double>();
  const double difference = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(difference, 3e-5 * largest + 2e-7) << name << ", of values up to " << largest;
}

void write_folder(const std::string& model, const std::string& folder, const std::string& without_prefix,
                  const std::map<std::string, std::string>& more) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kGoldens + model + ".json", folder + "/config.json");
  Tensors tensors = read_tensors(kGoldens + model + ".safetensors"), weights;
  for (const auto& [name, of] : more) {
    const at::Tensor& source = tensors.at("weight/" + (of == "-" ? std::string("model.embed_tokens.weight") : of));
    tensors["weight/" + name] = of == "-" ? source.neg() : source;
  }
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with("weight/")) continue;
    std::string key = name.substr(7);
    if (!without_prefix.empty() && key.starts_with(without_prefix)) key = key.substr(without_prefix.size());
    weights.emplace(key, tensor);
  }
  write_safetensors(folder + "/model.safetensors", weights);
}

models::CausalLM golden_model(const std::string& name, const Tensors& golden) {
  models::CausalLM model(models::read_config(kGoldens + name + ".json"));
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) item.value().copy_(golden.at("weight/" + item.key()));
  model->eval();
  return model;
}

}  // namespace zero::testing
