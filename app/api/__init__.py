"""HTTP to and from the engine; the only room that knows fastapi and pydantic."""
