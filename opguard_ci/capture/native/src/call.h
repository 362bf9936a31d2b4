// One call of an operator: what call.py says, compiled.
#pragma once

#include "core.h"

namespace opguard {

// Between its reads and its writes.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(Core& core, Info& info, Thread& thread) : core_(core), info_(info), thread_(thread) {}

  // Take the arguments apart; false if there is something strange among them.
  bool parse(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void before();
  void after(const torch::jit::Stack& stack, size_t num_returns);
  void abandon();

  // What is put off where values come late.
  void link_reads();
  void link_writes();
  void stop_writing();

 private:
  struct Change {
    Look look;
    int slot, change;
  };

  bool add(const c10::IValue& argument, uint8_t mark, std::string& key);
  std::shared_ptr<Text> text_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first) const;
  bool may_assume() const;
  void spend() const;
  void wait_for_readers() const;
  bool may_be_read_aside(const std::vector<const at::Tensor*>& made) const;
  void read_ahead();
  void write_ahead();
  void end_ahead();
  py::tuple links();
  void verify_copied();
  void look_at(const std::vector<const at::Tensor*>& made, const std::vector<int>& slots);
  void look_again();
  int kind_of_copy(const std::vector<size_t>& changed, const std::vector<at::Tensor>& outputs) const;
  void hand_over(const torch::jit::Stack& stack, size_t num_returns);
  void choose_generator(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first);
  uint64_t generator_state();
  py::object python_generator() const;

  Core& core_;
  Info& info_;
  Thread& thread_;
  std::shared_ptr<Text> text_;
  std::vector<at::Tensor> tensors_;
  std::vector<uint8_t> marks_;
  std::vector<Look> seen_;
  std::vector<ReadRow> reads_;
  std::vector<std::pair<int64_t, int64_t>> versions_;  // of the regions that are read: version, operators writing
  std::vector<RegionPtr> writing_, writing_ahead_;
  at::Generator generator_;  // of a random operator
  bool has_device_ = false, is_put_off_ = false;  // tensors of a device; what it reads is linked late
  std::vector<Change> changes_;
  std::vector<int> scratch_slots_;  // outputs without value
  std::vector<std::pair<size_t, Look>> suspects_;
  std::vector<WriteRow> writes_;
  Head head_{};
};

}  // namespace opguard
