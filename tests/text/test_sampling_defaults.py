import pytest

from ninfer_jax.text.sampling_defaults import (
    PLAIN_PRESET,
    THINKING_PRESET,
    SamplingOverrides,
    SamplingValues,
    resolve_sampling,
)


def test_presets():
    assert resolve_sampling(thinking=True) == THINKING_PRESET == SamplingValues(1.0, 0.95, 20)
    assert resolve_sampling(thinking=False) == PLAIN_PRESET
    assert SamplingValues(0.7, 0.8, 20, presence_penalty=1.5) == PLAIN_PRESET


@pytest.mark.parametrize(
    ("process", "request_", "greedy", "expected"),
    [
        ({"temperature": 0.5}, {}, False, 0.5),
        ({"temperature": 0.5}, {"temperature": 0.2}, False, 0.2),
        ({}, {"temperature": 0.0}, False, 0.0),
        ({"temperature": 0.5}, {"temperature": 0.2}, True, 0.0),
    ],
)
def test_precedence(process, request_, greedy, expected):
    values = resolve_sampling(
        thinking=True,
        process=SamplingOverrides(**process),
        request=SamplingOverrides(**request_),
        greedy=greedy,
    )
    assert values.temperature == expected
    assert values.top_p == 0.95


def test_zero_is_a_value_and_top_k_zero_means_the_cap():
    values = resolve_sampling(
        thinking=False,
        process=SamplingOverrides(top_k=5),
        request=SamplingOverrides(top_k=0, presence_penalty=0.0, frequency_penalty=-2.0, min_p=0.1),
    )
    assert values == SamplingValues(0.7, 0.8, 20, 0.1, 0.0, -2.0)
