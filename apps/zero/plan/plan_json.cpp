// `zero plan --json`.
#include <nlohmann/json.hpp>

#include "plan/plan_result.h"
#include "train/report_tables.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

ordered_json model_json(const PlanResult& result) {
  const auto& model = result.request.model;
  const plan::Plan& plan = result.plans.front();
  ordered_json json = {{"name", model.name},
                       {"parameters_numel", plan.parameters_numel},
                       {"padded_numel", plan.padded_numel},
                       {"units", plan.units}};
  if (const auto& t = model.transformer) {
    json["layers"] = t->layers;
    json["dim"] = t->dim;
    json["heads"] = t->heads;
    json["vocab"] = t->vocab;
    json["seq"] = t->seq;
  }
  return json;
}

ordered_json speeds_json(const plan::Speeds& speeds) {
  return {{"flops_per_s", speeds.flops_per_s},
          {"between_ranks", speeds.between_ranks},
          {"between_hosts", speeds.between_hosts},
          {"to_device", speeds.to_device},
          {"device_memory", speeds.device_memory},
          {"host_memory", speeds.host_memory},
          {"disk", speeds.disk},
          {"host_latency", speeds.host_latency},
          {"rank_latency", speeds.rank_latency},
          {"message_seconds", speeds.message_seconds},
          {"moved_by_core", speeds.moved_by_core},
          {"half_duplex", speeds.half_duplex}};
}

ordered_json run_json(const PlanResult& result) {
  const plan::Plan& plan = result.plans.front();
  const auto& cluster = result.request.cluster;
  return {{"ranks", plan.ranks},
          {"ranks_per_node", plan.ranks_per_node},
          {"nodes", plan.nodes},
          {"node_memory_nbytes", cluster.node_memory_nbytes},
          {"gpus", cluster.gpus},
          {"gpu_memory_nbytes", cluster.gpu_memory_nbytes},
          {"bandwidth_nbytes_per_s", cluster.bandwidth_nbytes_per_s},
          {"speeds", speeds_json(cluster.speeds)},
          {"dtype", dtype_name(plan.param_dtype)},
          {"micro_batch", plan.micro_batch},
          {"gradient_accumulation_steps", plan.accumulation_steps}};
}

ordered_json activations_json(const PlanResult& result) {
  if (!result.request.model.transformer) return nullptr;
  plan::Transformer shape = *result.request.model.transformer;
  const plan::Plan& plan = result.plans.front();
  ordered_json json = {{"checkpointing", shape.checkpointing}};
  for (const bool checkpointing : {false, true}) {
    shape.checkpointing = checkpointing;
    const auto kept = plan::activations(shape, plan.micro_batch, plan.param_dtype);
    json[checkpointing ? "with_checkpointing" : "without_checkpointing"] = {{"stored_nbytes", kept.stored_nbytes},
                                                                            {"peak_nbytes", kept.peak_nbytes}};
  }
  return json;
}

ordered_json traffic_json(const plan::Traffic& traffic) {
  return {{"gathered_numel", traffic.gathered_numel},
          {"reduced_numel", traffic.reduced_numel},
          {"published_numel", traffic.published_numel},
          {"whole_numel", traffic.whole_numel},
          {"islands_numel", traffic.islands_numel},
          {"nbytes", traffic.nbytes},
          {"between_hosts_nbytes", traffic.between_hosts_nbytes},
          {"seconds", traffic.seconds},
          {"nvme_nbytes", traffic.nvme_nbytes},
          {"nvme_written_nbytes", traffic.nvme_written_nbytes},
          {"to_device_nbytes", traffic.to_device_nbytes},
          {"from_device_nbytes", traffic.from_device_nbytes},
          {"host_update_nbytes", traffic.host_update_nbytes},
          {"device_update_nbytes", traffic.device_update_nbytes}};
}

ordered_json times_json(const plan::StepTimes& times) {
  return {
      {"compute", times.compute},     {"between_ranks", times.between_ranks}, {"between_hosts", times.between_hosts},
      {"to_device", times.to_device}, {"from_device", times.from_device},     {"update", times.update},
      {"disk", times.disk},           {"at_least", times.at_least()},         {"in_turn", times.in_turn()}};
}

ordered_json step_json(const plan::StepSimulation& step) {
  return {{"seconds", step.seconds},
          {"compute", step.compute},
          {"copies", step.copies},
          {"update", step.update},
          {"waits_for_parameters", step.waits_for_parameters},
          {"waits_for_gradients", step.waits_for_gradients},
          {"waits_for_ranks", step.waits_for_ranks},
          {"link_use", step.link_use},
          {"nbytes", step.nbytes},
          {"between_hosts_nbytes", step.between_hosts_nbytes},
          {"messages", step.messages},
          {"events", step.events}};
}

ordered_json goodput_json(const std::optional<plan::Goodput>& goodput) {
  if (!goodput) return nullptr;
  return {{"of_time", goodput->of_time},
          {"interval", goodput->interval},
          {"best_interval", goodput->best_interval},
          {"mtbf", goodput->mtbf}};
}

ordered_json paper_json(const plan::Plan& plan) {
  const auto states = plan::model_states(static_cast<double>(plan.parameters_numel), plan.stage, plan.ranks);
  return {{"parameters_nbytes", states.parameters_nbytes},
          {"gradients_nbytes", states.gradients_nbytes},
          {"optimizer_nbytes", states.optimizer_nbytes},
          {"total_nbytes", states.total_nbytes()}};
}

ordered_json stage_json(const plan::Plan& plan, const plan::Cluster& cluster) {
  return {{"stage", plan.stage},
          {"store", plan.node_shared ? "node_shared" : "copying"},
          {"rank", plan.heaviest_rank},
          {"kinds", kinds_json(plan.rank)},
          {"buckets_are_bound", plan.buckets_are_bound},
          {"gather_is_bound", plan.gather_is_bound},
          {"checkpoint_nbytes", plan.checkpoint_nbytes},
          {"process_nbytes", plan.process_nbytes},
          {"reused_nbytes", plan.reused_nbytes},
          {"start_nbytes", plan.start_nbytes},
          {"training_nbytes", plan.training_nbytes},
          {"tiers",
           {{"device_nbytes", cluster.gpus ? plan.peak_nbytes() : 0},
            {"host_nbytes", plan.host_nbytes},
            {"nvme_nbytes", plan.rank.nvme_nbytes}}},
          {"node_nbytes", plan.node_nbytes},
          {"fits", plan::fits(plan, cluster)},
          {"shards_on_gpu", plan.shards_on_gpu},
          {"traffic", traffic_json(plan.traffic)},
          {"flops", plan.flops},
          {"seconds", times_json(plan.times)},
          {"paper_states", paper_json(plan)}};
}

ordered_json suggestion_json(const std::optional<plan::Suggestion>& suggestion) {
  if (!suggestion) return nullptr;
  const plan::Plan& plan = suggestion->plan;
  return {{"changes", suggestion->changes},
          {"stage", plan.stage},
          {"ranks", plan.ranks},
          {"ranks_per_node", plan.ranks_per_node},
          {"micro_batch", plan.micro_batch},
          {"dtype", dtype_name(plan.param_dtype)},
          {"gpu_nbytes", suggestion->cluster.gpus ? plan.peak_nbytes() : 0},
          {"node_nbytes", plan.node_nbytes}};
}

}  // namespace

ordered_json plan_json(const PlanResult& result) {
  const plan::Plan& judged = result.plans[result.judged];
  ordered_json stages = ordered_json::array();
  for (std::size_t i = 0; i < result.plans.size(); ++i) {
    stages.push_back(stage_json(result.plans[i], result.request.cluster));
    stages.back()["simulated"] = result.steps.empty() ? ordered_json() : step_json(result.steps[i]);
  }
  return {{"model", model_json(result)},
          {"run", run_json(result)},
          {"activations", activations_json(result)},
          {"stages", stages},
          {"goodput", goodput_json(result.goodput)},
          {"verdict",
           {{"stage", judged.stage},
            {"fits", result.fits},
            {"gpu_nbytes", result.request.cluster.gpus ? judged.peak_nbytes() : 0},
            {"node_nbytes", judged.node_nbytes}}},
          {"suggestion", suggestion_json(result.suggestion)},
          {"suggestion_in_place", suggestion_json(result.in_place)}};
}

}  // namespace zero::app
