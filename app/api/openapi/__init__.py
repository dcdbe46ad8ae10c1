"""The OpenAPI document: what every route takes and answers, for people and for tools."""
