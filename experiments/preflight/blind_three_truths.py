"""Truths of `blind_three.py`: what a first finding has to say, at which place, what may follow, and what it costs.

In a row, `|` parts alternatives, and all words of one must occur in the finding. `at` has places; without it, any
place is right. Costs are held-out losses of the broken training minus its twin's after 150 steps, in nats, in
squared error for regression and forecasts, and in wrong letters for `ctc_blank_is_a_letter`;
`inf` means that the loss became NaN, `nan` that the cost was not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

TEXT = """
stream_reshaped_across: cost 1.9
    at: data labels
    words: label unrelated | label independent | label shuffl | label not depend | label random | label not
        match | target unrelated | target independent | target shuffl | target random | target not depend |
        target not match | label no relation | word order | words order | no structure | reshap | transpos
    also: loss fall | bigram
targets_rolled_over_the_batch: cost 1.9
    at: labels data loss
    words: label unrelated | label independent | label shuffl | label not depend | label random | label not
        match | target unrelated | target independent | target shuffl | target random | target not depend |
        target not match | label no relation | label next example | label other example | label another example
        | label another row | label shift | label align | label offset | label earlier | label later | label
        position | label next | target shift | target align
    also: order
label_encoder_per_batch: cost 1.8
    at: labels data loss head
    words: label each batch | label per batch | label every batch | label gap | label contiguous | label
        inconsisten | label contradict | label consecutive | label renumber | class never | class missing |
        class unused
    also: label unrelated | label independent | label shuffl | label not depend | label random | label not match
        | target unrelated | target independent | target shuffl | target random | target not depend | target not
        match | label no relation
sampler_weights_per_class: cost 3.3
    at: data labels
    words: repeat example | same example | example again | duplicat | distinct example | identical example |
        repeat row | same row | identical row
ids_stored_in_one_byte: cost 2.1
    at: data labels tok head
    words: 255 | 256 | overflow | wraps | uint8 | vocabulary never | vocabulary unused | rows never | ids never
        | token never | words never
pixels_divided_as_integers: cost 1.1
    at: data model vit
    words: input constant | input zero | inputs constant | inputs zero | input same | input identical | not
        depend input | input no influence | input not reach | input no effect | inputs ignored | input ignored |
        never varies | pixel zero | pixels constant | images zero | images constant | integer divi | all zero
    also: no gradient | zero gradient
pixels_rescaled_twice: cost 1.5
    at: data patch pos model cls
    words: input small | input scale | input tiny | input variance | input rescal | input spread | input std |
        input weak | input drown | pixels small | images small | inputs normal
flip_without_target: cost 0.46
    at: data labels loss
    words: label unrelated | label independent | label shuffl | label not depend | label random | label not
        match | target unrelated | target independent | target shuffl | target random | target not depend |
        target not match | label no relation | flip | mirror | symmetr | contradict
mixup_weights_swapped: cost 0.94
    at: loss labels data
    words: mixup | mixing label | label weight | weights swapped | label other example | label another example |
        label wrong example
    also: label
word_labels_without_cls_offset: cost 4.8
    at: labels data loss
    words: label shift | label align | label offset | label earlier | label later | label position | label next
        | target shift | target align | label special | label cls | label sep
ctc_blank_is_a_letter: cost 0.089
    at: loss labels data
    words: blank
ctc_lengths_of_another_front: cost 7.6
    at: loss labels data model
    words: loss zero | loss is 0 | loss 0.0 | zero_infinity | input_lengths | input length | length short | loss
        constant | loss not depend
    also: no gradient | gradient zero | zero gradient | not updat | unchanged | not mov | ignored
mel_and_time_transposed: cost 2.1
    at: data model front
    words: transpos | time axis | axes swap | swapped axes | channel time | frames channels | every frame reach
        | all frames
    also: order
spec_augment_covers_the_clip: cost 2.3
    at: data loss model front
    words: input constant | input zero | inputs constant | inputs zero | input same | input identical | not
        depend input | input no influence | input not reach | input no effect | inputs ignored | input ignored |
        never varies | mask all | mask every | augment | erases
    also: no gradient | random
forecast_left_in_normed_units: cost 3.4
    at: loss labels data model read
    words: target scale | target mean | targets scale | output scale | denormal | invariant | same output |
        target offset | target not reach | target spread | targets larger | targets level | output level
    also: initial loss | first loss | loss large | loss high
unix_time_as_a_feature: cost 0.4
    at: data lift model
    words: input large | input scale | inputs scale | input range | feature large | feature scale | column large
        | column scale | channel large | channel scale | input magnitude | drown | unnormal | not normal |
        values large
    also: saturat | loss large | gradient large | no influence | input
categories_as_numbers: cost 0.66
    at: data lift model
    words: categor | embedding | ordinal | integers input | ids number | input integer
targets_truncated_to_integers: cost 0.25
    at: labels data loss
    words: target constant | target zero | targets zero | target same | label constant | label same | labels
        zero | truncat | identical target | value zero | never var | integer target
choices_shuffled_answer_not: cost 1.4
    at: labels data loss
    words: label constant | label same | label always | one class | single class | label identical | label
        unrelated | label independent | label shuffl | label not depend | label random | label not match |
        target unrelated | target independent | target shuffl | target random | target not depend | target not
        match | label no relation | only class
most_words_masked: cost 0.21
    at: data labels
    words: mask share | masked % | mask most | 85 % | hidden most | input most same | same token % | one token |
        token dominat | too many mask | fraction mask
prompt_mask_inverted: cost 1.9
    at: labels data loss
    words: prompt | answer ignored | last ignored | end ignored | label invert | labels first half | labels end
        | later ignored | second half | last positions
    also: label unrelated | label independent | label shuffl | label not depend | label random | label not match
        | target unrelated | target independent | target shuffl | target random | target not depend | target not
        match | label no relation
ignore_index_is_a_class: cost 1.8
    at: loss labels data
    words: ignore_index | class 0 | label 0 | example ignored | examples ignored | labels ignored | class never
        | class ignored | example no gradient | examples reach
class_axis_is_time: cost 2.6
    at: loss labels
    words: class axis | class dim | classes time | transpos | softmax time | softmax position | normalized
        positions | time axis | wrong axis | wrong dim | positions classes
    also: future | later | label shift | label align | label offset | label earlier | label later | label
        position | label next | target shift | target align
nll_of_probabilities: cost 1.5
    at: loss
    words: log_softmax | log prob | log-prob | nll | unbounded | no lower bound | not bounded | bounded below |
        without bound | negative loss | loss negative | loss below zero | loss below 0 | logarithm | loss
        bounded
focal_weight_upside_down: cost 3.7
    at: loss
    words: focal | hard example | wrong example | gradient confiden | loss not fall | loss direction | loss
        rises | wrong prediction | not monoton | weight example
    also: loss below | loss chance | gradient small | loss small | loss low
bce_targets_minus_one: cost 1.8
    at: loss labels data
    words: target -1 | label -1 | target negative | label negative | target outside | label outside | target
        range | unbounded | no lower bound | not bounded | bounded below | without bound | negative loss | loss
        negative | loss below zero | loss below 0
gaussian_nll_precision_sign: cost 131000000.0
    at: loss read
    words: unbounded | no lower bound | not bounded | bounded below | without bound | negative loss | loss
        negative | loss below zero | loss below 0 | variance | minimum | likelihood
pinball_with_min: cost 338000.0
    at: loss
    words: unbounded | no lower bound | not bounded | bounded below | without bound | negative loss | loss
        negative | loss below zero | loss below 0 | quantile | pinball | wrong sign | away from
kl_div_of_probabilities: cost 1.6
    at: loss
    words: kl_div | kullback | divergence | log prob | log-prob | log_softmax | logarithm | unbounded | no lower
        bound | not bounded | bounded below | without bound | negative loss | loss negative | loss below zero |
        loss below 0
self_pairs_kept: cost 0.031
    at: loss model labels
    words: diagonal | itself | self-simil | self simil | own simil | largest logit | highest logit | self pair
    also: temperature | first loss | initial loss | chance
normalized_over_the_batch: cost 0.12
    at: loss model project
    words: normal batch | normal dim | other example | another example | across example | between example | mix
        example | across batch | other rows | other row | example leak | batch axis | examples reach | rows
        reach | batch dimension | not unit | unit length | wrong axis | wrong dim
cosine_targets_zero_one: cost 0.38
    at: loss labels data
    words: target -1 | label -1 | target 0 | label 0 | example ignored | examples ignored | negatives | pairs
        ignored | collaps | example no gradient | rows no gradient | half example | examples reach
    also: no gradient
second_task_overwrites_first: cost 1.4
    at: tag_head
    words: no gradient | without gradient | never gradient | not gradient | gradient reach | gradient zero |
        zero gradient | unused | not used | never used | no effect | no influence | not train | never updat
sample_weights_broadcast: cost 0.4
    at: loss labels data
    words: broadcast | weight shape | weight no effect | weight no influence | weights ignored | every pair |
        outer product | weight mean
    also: other example | another example | across example | between example | mix example | across batch |
        other rows | other row | example leak | batch axis | examples reach | rows reach | batch dimension
both_answers_are_the_chosen: cost 0.34
    words: zero gradient | gradient zero | no gradient | gradient vanish | loss constant | loss not depend |
        loss not change | loss same | loss zero | rejected | cancel | never read | not read | unused batch | log
        2 | 0.693
    also: unchanged | not updat | not mov | never chang
old_policy_not_detached: cost 1.4
    words: zero gradient | gradient zero | no gradient | gradient vanish | loss constant | loss not depend |
        loss not change | loss same | loss zero | cancel | detach | log-ratio
    also: unchanged | not updat | not mov | never chang
second_sample_scored: cost 3.9
    at: loss model step
    words: sampled twice | second sample | another sample | drawn twice | drawn again | two draws | reward
        unrelated | reward independent | gradient unrelated | gradient average | gradient mean zero
    also: random | noise | repeat
group_of_one: cost 1.4
    words: zero gradient | gradient zero | no gradient | gradient vanish | loss constant | loss not depend |
        loss not change | loss same | loss zero | advantage | one per group | group size
    also: unchanged | not updat | not mov | never chang
noise_drawn_again: cost 0.79
    at: loss labels data
    words: label unrelated | label independent | label shuffl | label not depend | label random | label not
        match | target unrelated | target independent | target shuffl | target random | target not depend |
        target not match | label no relation | target noise | drawn again | fresh noise | new noise | not
        predict
    also: random | noise | repeat
action_read_from_its_own_token: cost 4.9
    at: labels data loss model
    words: sees label | reads label | label input | sees target | label visible | leak | target input | own
        label | sees answer | answer visible | copies label | label reach
sdpa_in_flash_layout: cost 2.5
    at: layers model data
    words: position not reach | own position | other position | positions mix | across heads | over heads |
        heads attend | other tokens | earlier not reach | earlier influence | earlier reach | no token reach |
        only itself | earlier tokens | previous tokens | context
tagger_left_causal: cost 1.4
    at: model data roberta labels
    words: causal | right context | later not reach | one direction | is_decoder | after it | only earlier |
        following words | following tokens | later tokens | later positions | future
class_from_first_causal_state: cost 1.5
    at: data model body classify labels
    words: first token | first position | first word | position 0 | positions not reach | not reach output | not
        reach loss | later not reach | input no influence | input no effect | input ignored | inputs ignored |
        only position | most input | tokens not reach
    also: causal | no gradient | query
embeddings_for_last_states: cost 1.5
    at: electra.encoder electra
    words: no gradient | without gradient | never gradient | not gradient | gradient reach | gradient zero |
        zero gradient | unused | not used | never used | no effect | no influence | bypass
    also: position | first token | embedding | constant | input
token_types_passed_as_mask: cost 1.6
    at: data model bert
    words: attention_mask | attention mask | masked words | masked tokens | mask hides | token_type | position
        not reach | positions not reach | tokens not reach | input ignored | inputs ignored | input no influence
        | first not reach
    also: pooler
relative_distance_clamped_to_zero: cost 1.2
    at: blocks model data
    words: distance | relative | permut | order of | no position | rows never | one row | rows unused | rows
        gradient | position not matter | blind position | bias same
codes_without_straight_through: cost 0.88
    at: blocks patch pos cls norm
    words: no gradient | without gradient | never gradient | not gradient | gradient reach | gradient zero |
        zero gradient | unused | not used | never used | no effect | no influence | straight-through | gradient
        cut | detach
pooling_softmax_over_the_batch: cost -0.023
    at: score model data body loss
    words: other example | another example | across example | between example | mix example | across batch |
        other rows | other row | example leak | batch axis | examples reach | rows reach | batch dimension |
        softmax batch | weights sum | not sum one
examples_mixed_by_reshape: cost 2.7
    at: model data encoder classify labels
    words: other example | another example | across example | between example | mix example | across batch |
        other rows | other row | example leak | batch axis | examples reach | rows reach | batch dimension |
        batch_first | wrong example
memory_under_a_causal_mask: cost 0.067
    at: model data net labels
    words: memory_mask | memory mask | causal | source not reach | later source | source words not | sources not
        reach | cross-attention mask | positions not reach | inputs not reach | cannot see
drop_path_drops_the_stream: cost 0.3
    at: blocks model data
    words: whole example | residual stream | skip connection | skip path | drop path | drop-path | stochastic
        depth | examples zero | example zero | drops residual
    also: random | noise | dropout | repeat
epsilon_1e5_in_the_norms: cost 0.7
    at: norm body
    words: epsilon | eps= | eps=1e | 1e5 | 1e+05 | 100000 | norm small | norm output | norm shrink | norm
        constant | norm flat | vanish
    also: gradient small | no gradient | not depend | constant | logit
soft_cap_not_scaled_back: cost 1.8
    at: lm_head loss model
    words: logits bounded | logit bound | outputs bounded | output bounded | capped | soft cap | softcap | tanh
        | logit range | squash | loss floor | lowest loss | logits limited | logits cannot
    also: logits small
cosine_readout_without_scale: cost 0.64
    at: head loss model
    words: logits bounded | logit bound | outputs bounded | output bounded | cosine | logit range | loss floor |
        lowest loss | logits limited | logits cannot | temperature | logit scale
    also: logits small
dropout_on_the_logits: cost 0.27
    at: head loss model
    words: dropout logit | dropout output | dropout readout | dropout head | logits zero | logit zero | random
        logits | dropout after | dropout last
    also: dropout | random | repeat
router_softmax_over_time: cost 0.68
    at: blocks model data labels
    words: future | later reach | causal | softmax time | softmax token | weights sum | gates sum | later
        influence | following words | sees later | across tokens | over tokens
    also: router
balance_loss_outweighs: cost 0.052
    at: loss model model.layers labels
    words: aux | balance | loss not cross | loss beside | loss dominat | loss term | other terms | part of loss
    also: first loss | initial loss | loss chance | loss large | loss high
own_backward_forgets_the_chain: cost 1.4
    at: blocks model loss patch
    words: backward wrong | gradient wrong | finite diff | numeric | gradient disagree | gradient differ |
        gradient not match | chain rule | own backward | custom backward | autograd
    also: gradient large | explo | gradient
gradient_reversal_left_in: cost 1.8
    at: patch pos cls blocks norm model step optimizer loss
    words: revers | negated | opposite | ascen | uphill | finite diff | gradient wrong | gradient disagree |
        wrong sign | gradient sign | gradient not match | loss rises
std_given_as_mean: cost 1.4
    words: weights large | std | spread | init large | weight scale | variance | initial scale | initialization
        | normal_
    also: loss | logit | gradient | attention | softmax | saturat
normal_init_hits_the_norms: cost 1.1
    at: norm layers
    words: gain | norm weight | norms near | norm zero | norm initial | norm random | norm small
    also: gradient small | logit small | signal
from_meta_without_init: cost 2.4
    words: zero weight | all zero | weights zero | not initial | never initial | uninitial | same value | are
        zero
    also: gradient | logit | unchanged | loss | constant
square_weights_not_transposed: cost 0.012
    words: transpos | checkpoint | pretrained | loaded
    also: loss chance | loss start | first loss | initial loss
rotary_pairs_of_another_library: cost 0.4
    words: rotary | rope | checkpoint | pretrained | loaded
    also: loss chance | loss start | first loss | initial loss
adapter_output_dropped: cost 0.17
    at: blocks
    words: no gradient | without gradient | never gradient | not gradient | gradient reach | gradient zero |
        zero gradient | unused | not used | never used | no effect | no influence
soft_prompt_shifts_the_outputs: cost 1.7
    at: model labels data loss
    words: label shift | label align | label offset | label earlier | label later | label position | label next
        | target shift | target align | offset | shifted | misalign | last inputs | last tokens | own input |
        input ignored | inputs ignored | inputs not reach | position not reach | positions not reach
    also: bigram | no gradient
new_words_alike_and_frozen: cost 1.7
    at: tok data model
    words: row equal | rows equal | rows same | same embedding | identical | duplicat | rows alike | copies of |
        frozen embed | frozen tok | cannot tell
lora_scale_multiplied: cost 0.91
    at: blocks optimizer
    words: adapter scal | lora scal | scaling | scale large | scale too | update large | step large | rate large
        | rate high | update too | step too | rate too | output changes
    also: loss rises | gradient large
reentrant_checkpoint_on_frozen_input: cost 0.29
    at: blocks model
    words: no gradient | without gradient | never gradient | not gradient | gradient reach | gradient zero |
        zero gradient | unused | not used | never used | no effect | no influence | reentrant | use_reentrant
accumulation_not_divided: cost inf
    at: optimizer step loss
    words: accumul | divide by | gradient sum | sum of losses | gradients larger | gradient larger | gradient
        large | backward times | update large | step large | rate large | rate high | update too | step too |
        rate too
    also: loss rises
plateau_mode_max: cost 0.59
    at: optimizer step
    words: plateau | mode max | mode= | schedul
    also: rate
scheduler_made_in_the_loop: cost 1.3
    at: optimizer step
    words: schedul | warm | rate same | rate not | rate never | rate constant | rate small
    also: update small | step small | rate small | barely mov | hardly mov | update tiny | too slow
optimizer_made_in_the_loop: cost 1.2
    at: optimizer step
    words: never step | not step | no step | not call | momentum | new optimizer | another optimizer | outside
        optimizer | not by optimizer | without optimizer | different optimizer | optimizer state
    also: not updat
weight_decay_in_the_place_of_eps: cost 2.5
    at: optimizer
    words: epsilon | eps= | `eps` | eps 0.1 | eps is | eps of
    also: update small | step small | rate small | barely mov | hardly mov | update tiny | too slow
clipped_to_nothing: cost 1.4
    at: optimizer step
    words: clip | gradient shrunk | gradients shrunk | gradient scaled | gradients scaled | gradient chang |
        max_norm
    also: update small | step small | rate small | barely mov | hardly mov | update tiny | too slow
weights_clamped_after_the_step: cost 1.4
    words: clamp | clip weight | bounded weight | weights bound | saturate at | same magnitude | outside
        optimizer | not optimizer | other than optimizer | changed after step | overwrit | between steps |
        weights changed outside
    also: update large | loss rises | update large | step large | rate large | rate high | update too | step too
        | rate too
sharpness_step_never_undone: cost 0.003
    words: restor | uphill | ascen | climb | opposite | perturb | outside optimizer | not optimizer | other than
        optimizer | changed after step | overwrit | between steps | weights changed outside
    also: loss rises | update large | step large | rate large | rate high | update too | step too | rate too
divided_by_a_world_of_sixty_four: cost 1.3
    at: optimizer step
    words: gradient divided | gradient chang | gradients chang | gradient scaled | gradients scaled | between
        backward | gradients shrunk | after backward | gradient 64
    also: update small | step small | rate small | barely mov | hardly mov | update tiny | too slow | gradient
        small
scaler_made_in_the_loop: cost 2.5
    words: scaler | infinit | overflow | non-finite | not finite | steps skipped | step skipped | skips | never
        step
    also: unchanged | not updat | not mov | gradient
resumed_at_every_step: cost 0.64
    words: restor | put back | undone | load_state_dict | reload | resum | reset | same weights | back to |
        outside optimizer | not optimizer | other than optimizer | changed after step | overwrit | between steps
        | weights changed outside
    also: unchanged | not mov | not updat | never chang
"""


def _read() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line in TEXT.replace("\n        ", " ").strip().split("\n"):
        key, _, value = line.strip().partition(": ")
        if not line.startswith(" "):
            found[key] = own = {
                "words": [],
                "places": [],
                "consequences": [],
                "cost": float(value.split()[1]),
            }
        elif key == "at":
            own["places"] = value.split()
        else:
            own["words" if key == "words" else "consequences"] = [part.split() for part in value.split("|")]
    return found


TRUTHS = _read()


def mistake(case: Callable[[bool], dict[str, Any]]) -> Callable[[bool], dict[str, Any]]:
    """Add the truth to what a case returns."""

    @wraps(case)
    def with_truth(broken: bool) -> dict[str, Any]:
        return {**case(broken), "truth": TRUTHS[case.__name__.removeprefix("case_")]}

    return with_truth
