// The sampler in Python: checks shapes and ids, releases the GIL, calls the ops. What is wrong raises
// ValueError; kernels/sampling_ops.py turns that into ridgeline's own errors.
#include "bindings_sampling.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "ops/read_stream.h"
#include "ops/sample.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {

namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TokenIds = std::vector<int32_t>;
// Token ids, logprobs, ranks.
using LogprobLists = std::tuple<TokenIds, std::vector<double>, std::vector<int64_t>>;

constexpr int kMaxSamplerThreads = 256;
// Fewer are done before a sleeping thread wakes.
constexpr int64_t kMinCostlyRows = 4;

void require(bool condition, const std::string& message) {
    if (!condition) {
        throw nb::value_error(message.c_str());
    }
}

void require_ids(const TokenIds& token_ids, int64_t vocab_size, const char* name) {
    for (const int32_t token_id : token_ids) {
        require(token_id >= 0 && token_id < vocab_size, std::string(name) + " holds an unknown token id");
    }
}

LogprobLists as_lists(RowLogprobs&& logprobs) {
    return {std::move(logprobs.token_ids), std::move(logprobs.logprobs), std::move(logprobs.ranks)};
}

// Rows of a batch, shared out over threads of its own, each with its own scratch.
class Sampler {
  public:
    Sampler(int64_t vocab_size, int num_threads, const std::optional<std::string>& isa)
        : vocab_size_(vocab_size), kernels_(find_sampling_kernels(isa ? isa->c_str() : nullptr)) {
        require(kernels_ != nullptr, "isa: this machine has no kernels of that name");
        require(vocab_size >= 1 && vocab_size < 1 << 20, "vocab_size must be in 1..2**20 - 1");
        require(num_threads >= 1 && num_threads <= kMaxSamplerThreads, "num_threads must be in 1..256");
        pool_ = std::make_unique<ThreadPool>(num_threads);
        scratch_ = std::make_unique<SampleScratch[]>(static_cast<size_t>(num_threads));
    }

    // Tokens, logprobs where asked for, seconds. Row i has positions[i] output tokens so far.
    std::tuple<TokenIds, std::vector<std::optional<LogprobLists>>, double>
    sample(const Logits& logits, const std::vector<const SamplingRow*>& rows,
           const std::vector<int64_t>& positions, const std::vector<std::optional<Bits>>& allowed) {
        require_width(logits);
        require(rows.size() == logits.shape(0) && positions.size() == rows.size(),
                "logits, rows and positions differ in length");
        require(allowed.empty() || allowed.size() == rows.size(), "allowed differs in length");
        std::vector<SampleCall> calls(rows.size());
        for (size_t i = 0; i < rows.size(); i++) {
            require(rows[i] != nullptr, "a row is missing");
            require(positions[i] >= 0, "a position is negative");
            const bool has_mask = !allowed.empty() && allowed[i].has_value();
            require(!has_mask || static_cast<int64_t>(allowed[i]->size()) * 32 >= vocab_size_,
                    "allowed needs a bit for every token");
            require_known(*rows[i]);
            calls[i] = {logits.data() + static_cast<int64_t>(i) * vocab_size_, vocab_size_, rows[i],
                        positions[i], has_mask ? allowed[i]->data() : nullptr};
        }
        TokenIds token_ids(rows.size());
        std::vector<RowLogprobs> logprobs(rows.size());
        const auto started_at = std::chrono::steady_clock::now();
        const auto num_costly = std::count_if(calls.begin(), calls.end(), is_costly);
        const int64_t chunk_size = num_costly >= kMinCostlyRows ? 1 : static_cast<int64_t>(calls.size());
        run(rows.size(), chunk_size, [&](size_t i, SampleScratch& scratch, std::string& error) {
            RowLogprobs* const wanted = calls[i].row->num_logprobs >= -1 ? &logprobs[i] : nullptr;
            token_ids[i] = sample_row(*kernels_, calls[i], scratch, wanted, error);
        });
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - started_at).count();
        std::vector<std::optional<LogprobLists>> lists(rows.size());
        for (size_t i = 0; i < rows.size(); i++) {
            if (rows[i]->num_logprobs >= -1) {
                lists[i] = as_lists(std::move(logprobs[i]));
            }
        }
        return {std::move(token_ids), std::move(lists), seconds};
    }

    std::vector<LogprobLists> token_logprobs(const Logits& logits, const TokenIds& token_ids,
                                             int64_t num_logprobs) {
        require_width(logits);
        require(token_ids.size() == logits.shape(0), "logits and token_ids differ in length");
        require(num_logprobs >= -1, "num_logprobs must be -1 or more");
        require_ids(token_ids, vocab_size_, "token_ids");
        std::vector<RowLogprobs> logprobs(token_ids.size());
        run(token_ids.size(), 1, [&](size_t i, SampleScratch& scratch, std::string& error) {
            const SampleCall call = {logits.data() + static_cast<int64_t>(i) * vocab_size_, vocab_size_,
                                     nullptr, 0, nullptr};
            ridgeline::token_logprobs(*kernels_, call, token_ids[i], num_logprobs, scratch, logprobs[i],
                                      error);
        });
        std::vector<LogprobLists> lists;
        for (RowLogprobs& row : logprobs) {
            lists.push_back(as_lists(std::move(row)));
        }
        return lists;
    }

    // Waits for a call in progress, then ends the threads.
    void close() {
        const nb::gil_scoped_release release;
        const std::lock_guard<std::mutex> lock(mutex_);
        pool_.reset();
    }

  private:
    void require_width(const Logits& logits) const {
        require(static_cast<int64_t>(logits.shape(1)) == vocab_size_, "logits must be [rows, vocab_size]");
    }

    void require_known(const SamplingRow& row) const {
        require(row.id_limit <= vocab_size_, "a row names an unknown token id");
    }

    // Calls work(i, scratch, error) for each of `count` rows; the first error is thrown.
    template <class Work>
    void run(size_t count, int64_t chunk_size, const Work& work) {
        std::vector<std::string> errors(count);
        bool is_open = false;
        {
            const nb::gil_scoped_release release;
            const std::lock_guard<std::mutex> lock(mutex_);
            is_open = pool_ != nullptr;
            const auto work_on_rows = [&](int64_t begin, int64_t end, int worker) {
                for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); i++) {
                    work(i, scratch_[worker], errors[i]);
                }
            };
            if (is_open) {
                pool_->parallel_for(static_cast<int64_t>(count), std::max(chunk_size, int64_t{1}),
                                    work_on_rows);
            }
        }
        require(is_open, "the sampler is closed");
        for (const std::string& error : errors) {
            require(error.empty(), error);
        }
    }

    const int64_t vocab_size_;
    const SamplingKernels* const kernels_;
    std::mutex mutex_; // of the pool and its scratch
    std::unique_ptr<ThreadPool> pool_;
    std::unique_ptr<SampleScratch[]> scratch_; // of each thread
};

double read_seconds(const nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& buffer,
                    int num_threads) {
    require(num_threads >= 1 && num_threads <= kMaxSamplerThreads, "num_threads must be in 1..256");
    const nb::gil_scoped_release release;
    ThreadPool pool(num_threads);
    const auto started_at = std::chrono::steady_clock::now();
    static std::atomic<uint64_t> sink; // keeps the reads
    sink = read_stream(buffer.data(), static_cast<int64_t>(buffer.size()), pool);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_at).count();
}

} // namespace

void bind_sampling(nb::module_& m) {
    m.def("available_sampling_isas", [] {
        std::vector<std::string> names;
        for (const char* const name : available_sampling_isas()) {
            names.emplace_back(name);
        }
        return names;
    });
    m.def("read_seconds", &read_seconds, "buffer"_a, "num_threads"_a);
    nb::class_<SamplingRow>(m, "SamplingRow")
        .def(nb::init<>())
        .def_rw("temperature", &SamplingRow::temperature)
        .def_rw("top_k", &SamplingRow::top_k)
        .def_rw("top_p", &SamplingRow::top_p)
        .def_rw("min_p", &SamplingRow::min_p)
        .def_rw("seed", &SamplingRow::seed)
        .def_rw("choice_index", &SamplingRow::choice_index)
        .def_rw("num_logprobs", &SamplingRow::num_logprobs)
        .def_rw("min_tokens", &SamplingRow::min_tokens)
        .def_rw("repetition_penalty", &SamplingRow::repetition_penalty)
        .def_rw("presence_penalty", &SamplingRow::presence_penalty)
        .def_rw("frequency_penalty", &SamplingRow::frequency_penalty)
        .def("hold_back", &SamplingRow::hold_back, "token_ids"_a)
        .def("add_logit_bias", &SamplingRow::add_logit_bias, "token_id"_a, "bias"_a)
        .def("count_prompt", &SamplingRow::count_prompt, "token_ids"_a)
        .def("count_output", &SamplingRow::count_output, "token_ids"_a)
        .def_ro("num_counted", &SamplingRow::num_counted);
    nb::class_<Sampler>(m, "Sampler")
        .def(nb::init<int64_t, int, const std::optional<std::string>&>(), "vocab_size"_a, "num_threads"_a,
             "isa"_a.none())
        .def("sample", &Sampler::sample, "logits"_a.noconvert(), "rows"_a, "positions"_a, "allowed"_a)
        .def("close", &Sampler::close)
        .def("token_logprobs", &Sampler::token_logprobs, "logits"_a.noconvert(), "token_ids"_a,
             "num_logprobs"_a);
}

} // namespace ridgeline
