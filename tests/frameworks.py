"Jobs in the files of frameworks, for several tests."


def torchtitan_file(**parallelism):  # str
    "Llama 3 8B in torchtitan, 256 samples of 8192 tokens, shared out as these keys say."
    keys = '\n'.join(f'{name} = {value}' for name, value in parallelism.items())
    return f'''
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 8192
local_batch_size = 8
global_batch_size = 256
[parallelism]
{keys}
'''
