"""Configurations of Hugging Face as this project reads them, beside the library's own models.

`python tools/meta_configs.py` builds, for every causal model type of an installed `transformers`,
the model of its default configuration on the meta device, where a parameter has a shape and no
memory; it prints which types are read exactly, refused by name, or misread (there must be none).
"""
import dataclasses
import json
import sys
import warnings

from transformer_perf.models import as_model


def kinds(transformers):  # list of str
    "The causal model types."
    from transformers.models.auto import modeling_auto
    return list(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def parameters_of(transformers, torch, config):  # int
    "As the library counts them, tied ones once; a router's bias is a buffer there."
    with torch.device('meta'): model = transformers.AutoModelForCausalLM.from_config(config)
    buffers = [b for name, b in model.named_buffers() if 'correction_bias' in name]
    return sum(x.numel() for x in {*model.parameters(), *buffers})


def compared(transformers, torch, kind):  # (parameters of theirs or None, of ours or None, a line)
    "A model type's default configuration, counted by the library and read by this project."
    try:
        config = transformers.CONFIG_MAPPING[kind]()
        theirs = parameters_of(transformers, torch, config)
    except Exception as error: return None, None, repr(error)   # noqa: BLE001
    try: model = as_model(json.loads(json.dumps(config.to_dict())))
    except ValueError as error: return theirs, None, str(error)
    return theirs, dataclasses.replace(model, mtp_layers=0).parameters, ''


def all_compared():  # dict: kind -> (theirs, ours, line)
    "Every causal model type that can be built without a configuration of its own."
    import torch
    import transformers
    warnings.simplefilter('ignore')
    transformers.logging.set_verbosity_error()
    return {kind: compared(transformers, torch, kind) for kind in kinds(transformers)}


def verdict(theirs, ours):  # str
    "What became of a type."
    if theirs is None: return 'not built'
    if ours is None: return 'refused'
    return 'exact' if theirs == ours else 'misread'


def main():
    found = all_compared()
    for name in ('exact', 'refused', 'misread', 'not built'):
        rows = {kind: row for kind, row in found.items() if verdict(*row[:2]) == name}
        print(f'\n{name}: {len(rows)}')
        for kind, (theirs, ours, line) in rows.items():
            wrong = '' if ours == theirs else f' not {theirs:,}'
            print(f'  {kind:24}', line or f'{ours:,}{wrong}')
    return any(verdict(*row[:2]) == 'misread' for row in found.values())


if __name__ == '__main__': sys.exit(main())
