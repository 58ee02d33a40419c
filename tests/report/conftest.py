from tests.study.conftest import _cache, text

__all__ = ["_cache", "text"]
