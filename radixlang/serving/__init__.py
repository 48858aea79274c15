"""A server over any Backend: OpenAI's API, and programs as endpoints.

It knows HTTP and the protocol of `radixlang.protocol`, and nothing of a runtime. FastAPI and
uvicorn do the HTTP; they come with `pip install 'radixlang[serve]'`.
"""

from radixlang.serving.config import ServerConfig
from radixlang.serving.server import serve, serving

__all__ = ["ServerConfig", "serve", "serving"]
