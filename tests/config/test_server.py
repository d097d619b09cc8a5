"""ServerConfig: every setting is checked, and no key is ever shown."""

from __future__ import annotations

import pytest

from ridgeline.config.env import server_api_keys
from ridgeline.config.server import ServerConfig
from ridgeline.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", ""),
        ("host", " 0.0.0.0"),
        ("port", -1),
        ("port", 65536),
        ("port", "80"),
        ("metrics_port", 70000),
        ("metrics_port", 8000),
        ("allowed_origins", ("example.com",)),
        ("allowed_origins", ("https://example.com/path",)),
        ("served_model_names", (" ",)),
        ("max_body_bytes", 10),
        ("max_num_waiting", -1),
        ("body_timeout_s", 0),
        ("drain_timeout_s", float("inf")),
        ("stalled_client_timeout_s", float("nan")),
        ("max_request_timeout_s", True),
        ("request_timeout_s", -1.0),
        ("request_timeout_s", 3601.0),
        ("metrics_prefixes", ()),
        ("metrics_prefixes", ("a b",)),
        ("log_format", "xml"),
        ("otlp_endpoint", "localhost:4318"),
        ("otlp_endpoint", ""),
        ("tool_call_parser", "mistral"),
    ],
)
def test_a_wrong_setting_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**{field: value})
    assert caught.value.field.rstrip("s") in field
    assert caught.value.remedy


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "käse"])
def test_a_wrong_key_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(api_keys=("good-one", key))
    assert "good-one" not in str(caught.value)
    assert not key or key not in str(caught.value)


def test_keys_are_not_in_the_repr() -> None:
    config = ServerConfig(api_keys=("sk-secret",))
    assert "sk-secret" not in repr(config)
    assert config.api_keys == ("sk-secret",)


def test_the_defaults_stay_on_this_machine_and_queue_at_least_256() -> None:
    config = ServerConfig()
    assert config.is_loopback
    assert config.max_num_waiting >= 256
    assert not config.allowed_origins
    assert not ServerConfig(host="0.0.0.0").is_loopback


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RIDGELINE_API_KEY", raising=False)
    assert server_api_keys() == ()
    monkeypatch.setenv("RIDGELINE_API_KEY", " a, b ,,")
    assert server_api_keys() == ("a", "b")
