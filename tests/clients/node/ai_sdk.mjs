// The Vercel AI SDK over @ai-sdk/openai-compatible: text whole and streamed, a tool that must be
// called, whole and streamed, an object by a schema, an error. Called by test_ai_sdk.py with the
// server's address and key.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamText, tool } from "ai";

const [url, apiKey] = process.argv.slice(2);
const provider = (key) => createOpenAICompatible({
  name: "ours", baseURL: `${url}/v1`, apiKey: key, includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider(apiKey)("any");
const common = { model, temperature: 0, maxRetries: 0, maxOutputTokens: 16 };
const prompt = "What is the capital of France?";
const place = jsonSchema({
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
});
const forced = {
  ...common,
  maxOutputTokens: 64,
  prompt: "What is the weather in Paris?",
  tools: { weather: tool({ description: "The weather in a city", inputSchema: place }) },
  toolChoice: { type: "tool", toolName: "weather" },
};

const whole = await generateText({ ...common, prompt });
const stream = streamText({ ...common, prompt });
const pieces = [];
for await (const piece of stream.textStream) pieces.push(piece);
const call = await generateText(forced);
const callStream = streamText(forced);
const parts = [];
for await (const part of callStream.fullStream) parts.push(part);
const { object } = await generateObject({ ...common, maxOutputTokens: 64, prompt, schema: place });
let refusal = "";
try {
  await generateText({ ...common, prompt, model: provider("wrong")("any") });
} catch (error) {
  refusal = `${error.statusCode} ${error.message}`;
}

console.log(JSON.stringify({
  text: whole.text,
  finishReason: whole.finishReason,
  outputTokens: whole.usage.outputTokens,
  streamed: pieces.join(""),
  nPieces: pieces.length,
  streamedFinishReason: await stream.finishReason,
  streamedOutputTokens: (await stream.usage).outputTokens,
  calls: call.toolCalls.map(({ toolName, input }) => ({ toolName, input })),
  callFinishReason: call.finishReason,
  streamedCalls: (await callStream.toolCalls).map(({ toolName, input }) => ({ toolName, input })),
  errors: parts.filter(({ type }) => type === "error").length,
  object,
  refusal,
}));
