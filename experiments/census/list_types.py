"""Write types.json: every model type of the installed transformers that has a model class, and the class taken.

    python experiments/census/list_types.py

Of a type's classes the first task in TASKS counts: the one that reads a language or an image and gives a loss.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("types.json")
TASKS = {  # the auto mappings of transformers in order of preference, and what the model then reads
    "SPEECH_SEQ_2_SEQ": "audio",
    "MULTIMODAL_LM": "image and text",
    "IMAGE_TEXT_TO_TEXT": "image and text",
    "SEQ_TO_SEQ_CAUSAL_LM": "text",
    "MASKED_LM": "text",
    "CAUSAL_LM": "text",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "image and text",
    "IMAGE_CLASSIFICATION": "vision",
    "MASKED_IMAGE_MODELING": "vision",
    "VIDEO_CLASSIFICATION": "vision",
    "CTC": "audio",
    "AUDIO_CLASSIFICATION": "audio",
    "RNNT": "audio",
    "TDT": "audio",
    "TEXT_TO_SPECTROGRAM": "audio",
    "TEXT_TO_WAVEFORM": "audio",
    "VISUAL_QUESTION_ANSWERING": "image and text",
    "DOCUMENT_QUESTION_ANSWERING": "image and text",
    "ZERO_SHOT_OBJECT_DETECTION": "image and text",
    "RETRIEVAL": "image and text",
    "TEXT_RECOGNITION": "vision",
    "TABLE_RECOGNITION": "vision",
    "OBJECT_DETECTION": "vision",
    "UNIVERSAL_SEGMENTATION": "vision",
    "SEMANTIC_SEGMENTATION": "vision",
    "INSTANCE_SEGMENTATION": "vision",
    "IMAGE_SEGMENTATION": "vision",
    "MASK_GENERATION": "vision",
    "DEPTH_ESTIMATION": "vision",
    "NORMAL_ESTIMATION": "vision",
    "POINTMAP_ESTIMATION": "vision",
    "POSE_ESTIMATION": "vision",
    "KEYPOINT_DETECTION": "vision",
    "KEYPOINT_MATCHING": "vision",
    "IMAGE_MATTING": "vision",
    "IMAGE_TO_IMAGE": "vision",
    "TIME_SERIES_PREDICTION": "time series",
    "TIME_SERIES_CLASSIFICATION": "time series",
    "TIME_SERIES_REGRESSION": "time series",
    "SEQUENCE_CLASSIFICATION": "text",
    "QUESTION_ANSWERING": "text",
    "TOKEN_CLASSIFICATION": "text",
    "TABLE_QUESTION_ANSWERING": "text",
    "MULTIPLE_CHOICE": "text",
    "NEXT_SENTENCE_PREDICTION": "text",
    "TEXT_ENCODING": "text",
    "IMAGE": "vision",
    "BACKBONE": "vision",
    "PRETRAINING": "base",
    "MODEL": "base",
}


def types() -> list[dict[str, str]]:
    """One row for each type, in alphabetical order: its name, its class, what it reads, and the auto mapping."""
    from transformers.models.auto import modeling_auto

    rows: dict[str, dict[str, str]] = {}
    for task, kind in TASKS.items():
        for name, classes in _mapping(modeling_auto, task).items():
            chosen = classes if isinstance(classes, str) else classes[0]
            rows.setdefault(name, {"type": name, "class": chosen, "kind": kind, "task": task})
    return [rows[name] for name in sorted(rows)]


def _mapping(module: Any, task: str) -> dict[str, Any]:
    prefix = "MODEL" if task == "MODEL" else f"MODEL_FOR_{task}"
    return dict(getattr(module, f"{prefix}_MAPPING_NAMES"))


def main() -> None:
    rows = types()
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    FILE.write_text(f'{{"transformers": "{version("transformers")}", "types": [\n{lines}\n]}}\n')
    print(f"{len(rows)} types written to {FILE}")


if __name__ == "__main__":
    main()
