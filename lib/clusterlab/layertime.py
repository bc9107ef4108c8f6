"""How long one transformer layer takes on one device for one micro-batch, part by part, forward and backward.

Bytes are counted tensor by tensor, as the unfused kernels of Megatron-LM move them: 2 bytes a number, 1 a dropout
mask, read plus write. Shapes are those that tensor (t), context (c) and expert (e) parallelism leave on a device.
"""

import numpy as np

from clusterlab.collectives import collective_seconds
from clusterlab.kernels import group_link, hidden


def layer_parameters(model, plan):
    """Parameters of one layer that one device holds; matrices are cut by tensor and expert parallelism.

    >>> from clusterlab.plan import Plan
    >>> from clusterlab.transformer import model
    >>> round(float(layer_parameters(model("gpt-3-175b"), Plan(tensor=8, global_batch=1, seq=2048))) / 1e6)    # 1,812 / 8
    227
    """
    tensor, expert = np.asarray(plan.tensor, float), np.asarray(plan.expert, float)
    return sum(w.size / np.minimum(tensor, w.pieces) * (model.experts / expert if w.experts > 1 else 1.0)
               for w in model.layer_weights())


def layer_seconds(model, cluster, plan, device, *, recipe, attention, overlap="none", use=None):
    """(forward, backward) of one layer on one micro-batch: each a dict of part to seconds.

    * ``matmul``: the linear layers. Backward takes the gradients of input and weights, two products each.
    * ``attention``: :func:`attention_seconds`.
    * ``pointwise``: norms, dropout, residuals, activation, rotary embedding, layout copies, bias gradients.
    * ``tensor``: two all-reduces of the 2·tokens·h bytes of activations forward (with sequence parallelism cut into
      reduce-scatter and all-gather, which take as long together). Backward, the all-reduce of an input's gradient
      hides behind the weight's gradient. With sequence parallelism the output's gradient is gathered first, in the
      open; a second all-gather and the reduce-scatter hide (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
      ``overlap="all"`` hides the open ones too.
    * ``context``: K and V gathered, and again in the backward pass, their gradients scattered (Llama 3,
      arXiv:2407.21783, section 3.3.2).   * ``expert``: tokens sent to experts and back, all-to-all.
    * ``gradients``: each weight's gradient added to the accumulated one; backward.

    ``device`` is a :class:`~clusterlab.kernels.Device`. Arrays of the plan broadcast.

    >>> from clusterlab.hardware import Cluster, node
    >>> from clusterlab.kernels import Device
    >>> from clusterlab.memory import MIXED_16
    >>> from clusterlab.plan import Plan
    >>> from clusterlab.transformer import model
    >>> cluster = Cluster(node("DGX A100"), 1)
    >>> plan = Plan(tensor=8, micro_batch=4, global_batch=4, seq=2048)
    >>> passes = layer_seconds(model("megatron-22b"), cluster, plan, Device.of(cluster.accelerator, "bf16"),
    ...                        recipe=MIXED_16, attention="eager")
    >>> [f"{sum(parts.values()) * 1e3:.1f} ms" for parts in passes]      # published: 7.2 and 11.8
    ['7.3 ms', '11.8 ms']
    """
    t, c, e = (np.asarray(x, float) for x in (plan.tensor, plan.context, plan.expert))
    batch, seq = np.asarray(plan.micro_batch, float), np.asarray(plan.seq, float)
    tokens, h, f = batch * seq / c, model.hidden, model.ffn
    query, key_value = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
    into, visits = (2 * f if model.gated else f), model.experts_per_token
    local = model.experts / e  # experts of a rank, each with an equal share of the tokens
    routed = tokens * visits / local
    linear = {"qkv": device.linear(tokens, h, (query + key_value) / t), "output": device.linear(tokens, query / t, h),
              "up": device.linear(routed, h, into / t, local), "down": device.linear(routed, f / t, h, local)}
    ahead, dgrad, wgrad = sum(linear.values())
    core, core_back = attention_seconds(device, attention, batch * model.heads / t, seq / c, seq, model.head_dim,
                                        dropout=model.norm == "layer")

    width = h / np.where(plan.sequence_parallel, t, 1.0)  # of norms, residuals and dropout
    mask = 1.0 if model.norm == "layer" else 0.0
    rotary = 0.0 if model.positions else 4.0 * (query + key_value / 2)
    sort = 8.0 * visits * h / t if model.experts > 1 else 0.0  # tokens in the order of their experts, and back
    bias = 2.0 * ((query + key_value + into) / t + 2 * h) if model.bias is True else 0.0
    wide = visits * f / t
    point = (width * (2 * 4 + 2 * (6 + mask)) + wide * (6 if model.gated else 4) + (4.0 * query + rotary) / t + sort)
    point_back = (width * (2 * 8 + 2 * 5 * mask) + wide * (10 if model.gated else 6)
                  + (8.0 * query + 4.0 * key_value + rotary) / t + sort + bias)

    reduce = collective("all-reduce", 2.0 * tokens * h, t, group_link(cluster, 1, t, use))
    if overlap == "all":
        tensor = hidden(2.0 * reduce, ahead, use)
        tensor_back = hidden(np.where(plan.sequence_parallel, 3.0, 2.0) * reduce, dgrad + wgrad, use)
    else:
        tensor = 2.0 * reduce
        behind_weights, behind_inputs = (linear["qkv"][i] + linear["up"][i] for i in (2, 1))
        tensor_back = np.where(plan.sequence_parallel,
                               reduce + hidden(reduce, behind_weights, use) + hidden(reduce, behind_inputs, use),
                               hidden(2.0 * reduce, behind_weights, use))
    context = collective("all-gather", 2.0 * batch * seq * key_value / t, c, group_link(cluster, t, c, use))
    sent = 2.0 * tokens * visits * h / t if model.experts > 1 else 0.0
    expert = 2.0 * collective("all-to-all", sent, e, group_link(cluster, t, e, use))
    forward = {"matmul": ahead, "attention": core, "pointwise": device.stream(tokens * point),
               "tensor": tensor, "context": context, "expert": expert, "gradients": 0.0 * ahead}
    backward = {"matmul": dgrad + wgrad, "attention": core_back, "pointwise": device.stream(tokens * point_back),
                "tensor": tensor_back, "context": 2.0 * context, "expert": expert,
                "gradients": device.stream(accumulated_bytes(recipe) * layer_parameters(model, plan))}
    return forward, backward


def attention_seconds(device, attention, heads, rows, columns, width, *, dropout):
    """(forward, backward) seconds of the attention core of `heads` heads, rows × columns scores each.

    ``"eager"``: two products, and the scores through memory: softmax reads and writes them, dropout too, with a mask.
    ``"flash"``: the causal half of the products alone; backward is five products to the forward's two, as scores are
    computed again (Dao et al. 2022, arXiv:2205.14135). It runs as fast as other products: FlashAttention-3 comes near
    (75 % of an H100's peak, arXiv:2407.08608), its predecessor does not (35 %).

    >>> from clusterlab.kernels import Device
    >>> device = Device(flops=250e12, bandwidth=1.7e12, multiprocessors=None)
    >>> eager, flash = (attention_seconds(device, kind, 12, 2048, 2048, 128, dropout=True) for kind in ("eager", "flash"))
    >>> bool(eager[0] > 5 * flash[0])
    True
    """
    scores = heads * rows * columns
    if attention == "flash":
        forward = 2.0 * scores * width / device.flops  # 2 products · 2 FLOP · half of the square
        return forward, 2.5 * forward
    products = device.matmul(rows, columns, width, heads) + device.matmul(rows, width, columns, heads)
    mask = 5.0 if dropout else 0.0
    return products + device.stream((4.0 + mask) * scores), 2.0 * products + device.stream((6.0 + mask) * scores)


def accumulated_bytes(recipe):
    """Bytes a parameter of adding a gradient: 2 read, and the accumulated one read and written.

    >>> from clusterlab.memory import MIXED_18
    >>> accumulated_bytes(MIXED_18)
    10.0
    """
    return 2.0 + 2.0 * recipe.gradient


def collective(operation, size, ranks, link):
    """Seconds of a ring collective; none for a single rank.

    >>> from clusterlab.hardware import link
    >>> float(collective("all-reduce", 1e9, 1, link("NVLink 4")))
    0.0
    """
    return np.where(np.greater(ranks, 1), collective_seconds(operation, size, ranks, link), 0.0)
