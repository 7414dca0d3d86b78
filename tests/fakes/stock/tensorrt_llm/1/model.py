"""Stands in for TensorRT-LLM's model: verifies draft tokens with the PyTorch engine, each request from scratch."""

import json
import sys
from pathlib import Path

sys.path.append("REPOSITORY_ROOT")

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Part
from python_backend.sampling.params import SamplingParams, columns
from python_backend.settings import CoordinatorSettings, TargetSettings, load
from tests.support.checkpoints import make_step


class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))
        checkpoint = load().target.checkpoint
        self.engine = TorchEngine(
            Path(checkpoint),
            TargetSettings(checkpoint=checkpoint),
            CoordinatorSettings(max_sequences=1, max_length=256),
        )

    def execute(self, requests):
        answers = [self.answer({t.name(): t.as_numpy() for t in request.inputs()}) for request in requests]
        if not self.decoupled:
            return answers
        for request, answer in zip(requests, answers, strict=True):
            sender = request.get_response_sender()
            sender.send(answer)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def answer(self, given):
        length, asked = int(given["input_lengths"].reshape(-1)[0]), int(given["request_output_len"].reshape(-1)[0])
        tokens = given["input_ids"][0, :length].tolist()
        drafts = given["draft_input_ids"][0].tolist() if "draft_input_ids" in given else []
        assert asked == len(drafts) + 1
        step = make_step(Part(0, 0, tokens + drafts, drafts=len(drafts)), **columns([params_of(given)], [0]))
        result = self.engine.step(step)
        self.engine.release(np.array([0]))
        emitted = [*drafts[: result.accepted[0]], int(result.next_token[0])]
        ids = (emitted if given["exclude_input_in_output"].reshape(-1)[0] else tokens + emitted) + [
            0
        ]  # padded, as upstream's are
        outputs = {
            "output_ids": np.array([[ids]], dtype=np.int32),
            "sequence_length": np.array([[len(ids) - 1]], dtype=np.int32),
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])


def params_of(given):
    def value(name, default):
        return given[name].reshape(-1)[0].item() if name in given else default

    top_k, top_p = value("runtime_top_k", 0), value("runtime_top_p", 0.0)
    if top_k == 0 and top_p == 0:  # upstream's regularizeTopKTopP: neither is argmax
        top_k = 1
    return SamplingParams(
        temperature=0.0 if top_k == 1 else value("temperature", 1.0),
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=value("repetition_penalty", 1.0),
        seed=value("seed", 0),
        bad_words=bad_words(given["bad_words_list"][0]) if "bad_words_list" in given else (),
    )


def bad_words(listed):
    ends = [int(end) for end in listed[1] if end > 0]
    return tuple(tuple(listed[0, a:b].tolist()) for a, b in zip([0, *ends[:-1]], ends, strict=True))
