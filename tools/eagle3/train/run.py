"""Trains the drafter, and keeps the best one by acceptance length on samples it never trains on."""

import time
from functools import partial
from typing import Any

import torch

from eagle3.features import FeatureSet, open_features
from eagle3.losses import Acceptance, Batch, Outcome
from eagle3.model import Drafter, Shape
from eagle3.target import Target, load_target
from eagle3.train.kept import Kept
from eagle3.train.packing import Schedule, packed, split
from eagle3.train.spec import TrainParams
from eagle3.train.trainer import Trainer
from eagle3.vocabulary import open_vocabulary
from eagle3.weights import load_weights, new_drafter, save_drafter
from harness.contract import Context, Result, ToolError


def main(params: TrainParams, context: Context) -> Result:
    """Train from the progress checkpoint where one was kept, and write the best drafter."""
    torch.set_num_threads(params.threads)
    torch.manual_seed(params.seed)
    context.catch_stop()
    target = load_target(params.target)
    features = _open_features(params, target)
    training, validation = split(len(features), params.validation_fraction, params.seed)
    schedule = Schedule(training, features.lengths, batch_tokens=params.batch_tokens, seed=params.seed)
    num_steps = params.steps or schedule.num_steps(params.epochs or 1)
    drafter = _drafter(params, target, features, context)
    trainer = Trainer(params, drafter, target, normed=features.final == "normed", num_steps=num_steps)
    kept = Kept(context.scratch)
    going_on = f", going on at step {trainer.next_step}" if kept.resume(trainer) else ""
    context.say(f"{len(training)} samples, {num_steps} steps, {len(validation)} samples to validate with{going_on}")
    held_out = [
        load_batch(features, group) for group in packed(validation.tolist(), features.lengths, params.batch_tokens)
    ]
    while trainer.next_step < num_steps:
        context.stop_point(partial(kept.save, trainer))
        _step(trainer, load_batch(features, schedule.samples(trainer.next_step)), context)
        done = trainer.next_step
        if done == num_steps or _validates(params, schedule, done):
            acceptance, loss = trainer.validate(held_out)
            kept.judge(trainer, acceptance, loss)
            context.metric(step=done, validation_loss=loss, **_figures("validation_", acceptance))
        if done % params.checkpoint_every == 0:
            kept.save(trainer)
    best = kept.best()
    drafter.load_state_dict(best.pop("drafter"))
    save_drafter(context.outputs["drafter"], drafter, {**_facts(params, target, features), **best})
    return Result(
        values={name: best[name] for name in ("acceptance_length", "loss", "accuracy", "step")},
        metrics={"acceptance_length": best["acceptance_length"], "loss": best["loss"]},
        note=f"simulated acceptance length {best['acceptance_length']:.2f} with {params.unroll} draft tokens",
    )


def load_batch(features: FeatureSet, indices: list[int]) -> Batch:
    """The samples `indices` packed end to end, in float32."""
    samples = [features[index] for index in indices]
    return Batch(
        indices=indices,
        lengths=[len(sample.input_ids) for sample in samples],
        input_ids=torch.cat([sample.input_ids for sample in samples]),
        loss_mask=torch.cat([sample.loss_mask for sample in samples]).bool(),
        aux=torch.cat([torch.cat(sample.hidden_states[:-1], -1) for sample in samples]).float(),
        final=torch.cat([sample.hidden_states[-1] for sample in samples]).float(),
    )


def _open_features(params: TrainParams, target: Target) -> FeatureSet:
    """Raises ToolError for the features of another target: they would train without a word, to a useless drafter."""
    features = open_features(params.features)
    if features.target_fingerprint != target.fingerprint:
        raise ToolError(
            "the features were extracted from another target",
            where=params.features,
            found=f"'{features.target_fingerprint[:12]}' where the target has '{target.fingerprint[:12]}'",
            do="Run 'extract' with this target.",
        )
    return features


def _drafter(params: TrainParams, target: Target, features: FeatureSet, context: Context) -> Drafter:
    vocabulary = open_vocabulary(params.vocab, target.tokenizer_fingerprint)
    sizes = {name: getattr(params, name) for name in ("num_heads", "num_kv_heads", "intermediate_size")}
    shape = Shape.of(target, vocabulary, len(features.layers) - 1, **sizes)
    drafter = new_drafter(shape, vocabulary, target, seed=params.seed)
    if params.init_from:
        num_rows = load_weights(drafter, params.init_from)
        context.say(f"started from '{params.init_from}', {num_rows} of {vocabulary.size} rows of lm_head found there")
    return drafter


def _validates(params: TrainParams, schedule: Schedule, done: int) -> bool:
    if params.validate_every:
        return done % params.validate_every == 0
    return schedule.ends_epoch(done - 1)


def _step(trainer: Trainer, batch: Batch, context: Context) -> None:
    """One step, reported; raises ToolError naming the samples when its loss or gradient isn't finite."""
    start_s = time.perf_counter()
    number, rate = trainer.next_step, trainer.rate
    outcome, norm = trainer.step(batch)
    if trainer.next_step == number:
        raise ToolError(
            "loss or gradient is not finite",
            where=f"step {number}",
            found=f"loss {float(outcome.loss.detach()):g}, gradient norm {norm:g}, samples {str(batch.indices)[1:-1]}",
            do="Run 'verify' on the features, or lower learning_rate.",
        )
    context.progress(trainer.next_step, trainer.num_steps, unit="steps")
    if number % trainer.params.log_every == 0:
        rate_tokens_s = len(batch.input_ids) / (time.perf_counter() - start_s)
        context.metric(step=trainer.next_step, learning_rate=rate, gradient_norm=norm, tokens_per_s=rate_tokens_s)
        context.metric(step=trainer.next_step, **_step_figures(outcome))


def _step_figures(outcome: Outcome) -> dict[str, float]:
    acceptance = Acceptance(len(outcome.step_losses))
    acceptance.add(outcome)
    losses = {f"loss_{k + 1}": float(loss) for k, loss in enumerate(outcome.step_losses)}
    return {"loss": float(outcome.loss.detach()), **losses, **_figures("", acceptance)}


def _figures(prefix: str, acceptance: Acceptance) -> dict[str, float]:
    accuracy = {f"{prefix}accuracy_{k + 1}": value for k, value in enumerate(acceptance.accuracy)}
    return {f"{prefix}acceptance_length": acceptance.length, **accuracy}


def _facts(params: TrainParams, target: Target, features: FeatureSet) -> dict[str, Any]:
    """What whoever loads the drafter has to know, and what it was made from."""
    return {
        "layers": list(features.layers[:-1]),
        "target_fingerprint": target.fingerprint,
        "tokenizer_fingerprint": target.tokenizer_fingerprint,
        "training": params.model_dump(mode="json"),
    }
