// Asks gateways with the official libraries for Node; prints what they understood, one line of JSON per call.
//
// Argument: JSON, a list of gateways with `url`, `token` and `parts`. An empty line ends the output of each. `sdks.py`
// makes the same calls with the libraries for Python.

import Anthropic from "@anthropic-ai/sdk";
import { ApiError, GoogleGenAI } from "@google/genai";
import OpenAI from "openai";

let url, token;
const IMAGE =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const SCHEMA = { type: "object", properties: { command: { type: "string" } }, required: ["command"] };

const report = (call, found) => console.log(JSON.stringify({ call, ...found }));
const say = (content) => ({ role: "user", content });

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

/** Reports the error of a call, which must be of this class. */
async function fails(call, kind, asked, shown) {
  try {
    await asked;
  } catch (error) {
    if (!(error instanceof kind)) throw error;
    report(call, shown(error));
  }
}

async function chat() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: token, maxRetries: 0 });
  const create = (messages, more) => client.chat.completions.create({ model: "m", messages, ...more });
  const tools = [{ type: "function", function: { name: "shell", parameters: SCHEMA } }];
  const shown = (call) => ({ tool: call.function.name, arguments: JSON.parse(call.function.arguments) });

  const whole = await create([say("say hello")]);
  report("chat", { text: whole.choices[0].message.content, tokens: whole.usage.completion_tokens });
  let chunks = await all(await create([say("say hello")], { stream: true }));
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  report("chat stream", { text, usage: chunks.some((chunk) => chunk.usage) });
  const asking = { stream: true, stream_options: { include_usage: true } };
  chunks = await all(await create([say("say hello")], asking));
  const usages = chunks.filter((chunk) => chunk.usage);
  report("chat stream usage", { tokens: usages.map((chunk) => chunk.usage.completion_tokens) });
  const { message } = (await create([say("use the tool")], { tools })).choices[0];
  report("chat tool", shown(message.tool_calls[0]));
  const stream = client.chat.completions.stream({ model: "m", messages: [say("use the tool")], tools });
  const final = await stream.finalChatCompletion();
  report("chat tool stream", shown(final.choices[0].message.tool_calls[0]));
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "it worked" };
  const answer = await create([say("use the tool"), message, result], { tools });
  report("chat tool result", { text: answer.choices[0].message.content });
  const image = { type: "image_url", image_url: { url: `data:image/png;base64,${IMAGE}` } };
  const seen = await create([say([{ type: "text", text: "look" }, image])]);
  report("chat image", { text: seen.choices[0].message.content });
  report("chat models", { models: (await all(client.models.list())).map((model) => model.id) });
  await fails("chat error", OpenAI.BadRequestError, create([say("fail")]), (error) => ({
    status: error.status,
    message: error.error.message,
  }));
}

async function responses() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: token, maxRetries: 0 });
  const create = (input, more) => client.responses.create({ model: "m", input, ...more });
  const tools = [{ type: "function", name: "shell", parameters: SCHEMA, strict: false }];
  const calls = (answer) => answer.output.filter((item) => item.type === "function_call");
  const shown = (call) => ({ tool: call.name, arguments: JSON.parse(call.arguments) });

  const whole = await create("say hello");
  report("responses", { text: whole.output_text, tokens: whole.usage.output_tokens });
  let stream = client.responses.stream({ model: "m", input: "say hello" });
  const deltas = (await all(stream)).filter((event) => event.type === "response.output_text.delta");
  let final = await stream.finalResponse();
  report("responses stream", {
    text: deltas.map((event) => event.delta).join(""),
    final: final.output_text,
    tokens: final.usage.output_tokens,
  });
  const called = await create("use the tool", { tools });
  report("responses tool", shown(calls(called)[0]));
  stream = client.responses.stream({ model: "m", input: "use the tool", tools });
  report("responses tool stream", shown(calls(await stream.finalResponse())[0]));
  const result = { type: "function_call_output", call_id: calls(called)[0].call_id, output: "it worked" };
  const answer = await create([say("use the tool"), ...called.output, result], { tools });
  report("responses tool result", { text: answer.output_text });
  const image = { type: "input_image", detail: "auto", image_url: `data:image/png;base64,${IMAGE}` };
  const seen = await create([say([{ type: "input_text", text: "look" }, image])]);
  report("responses image", { text: seen.output_text });
  const count = await client.responses.inputTokens.count({ model: "m", input: "say hello" });
  report("responses count", { counted: count.input_tokens > 0 });
  await fails("responses error", OpenAI.BadRequestError, create("fail"), (error) => ({
    status: error.status,
    message: error.error.message,
  }));
}

async function messages() {
  const client = new Anthropic({ baseURL: url, apiKey: token, maxRetries: 0 });
  const ask = (messages, more) => ({ model: "m", max_tokens: 100, messages, ...more });
  const tools = [{ name: "shell", description: "Runs a command.", input_schema: SCHEMA }];
  const calls = (answer) => answer.content.filter((block) => block.type === "tool_use");
  const shown = (call) => ({ tool: call.name, arguments: call.input });

  const whole = await client.messages.create(ask([say("say hello")]));
  report("messages", { text: whole.content[0].text, tokens: whole.usage.output_tokens });
  let stream = client.messages.stream(ask([say("say hello")]));
  const deltas = (await all(stream)).filter((event) => event.type === "content_block_delta");
  const { usage } = await stream.finalMessage();
  report("messages stream", {
    text: deltas.map((event) => event.delta.text).join(""),
    tokens: usage.output_tokens,
  });
  const called = await client.messages.create(ask([say("use the tool")], { tools }));
  report("messages tool", shown(calls(called)[0]));
  stream = client.messages.stream(ask([say("use the tool")], { tools }));
  report("messages tool stream", shown(calls(await stream.finalMessage())[0]));
  const result = { type: "tool_result", tool_use_id: calls(called)[0].id, content: "it worked" };
  const earlier = { role: "assistant", content: called.content };
  const answer = await client.messages.create(ask([say("use the tool"), earlier, say([result])], { tools }));
  report("messages tool result", { text: answer.content[0].text });
  const source = { type: "base64", media_type: "image/png", data: IMAGE };
  const seen = await client.messages.create(
    ask([say([{ type: "text", text: "look" }, { type: "image", source }])]),
  );
  report("messages image", { text: seen.content[0].text });
  const count = await client.messages.countTokens({ model: "m", messages: [say("say hello")] });
  report("messages count", { counted: count.input_tokens > 0 });
  report("messages models", { models: (await all(client.models.list())).map((model) => model.id) });
  await fails("messages error", Anthropic.BadRequestError, client.messages.create(ask([say("fail")])), (error) => ({
    status: error.status,
    message: error.error.error.message,
  }));
}

async function gemini() {
  const client = new GoogleGenAI({ apiKey: token, httpOptions: { baseUrl: url } });
  const create = (contents, config) => client.models.generateContent({ model: "m", contents, config });
  const stream = async (contents, config) =>
    all(await client.models.generateContentStream({ model: "m", contents, config }));
  const shell = { name: "shell", description: "Runs a command.", parametersJsonSchema: SCHEMA };
  const config = { tools: [{ functionDeclarations: [shell] }], automaticFunctionCalling: { disable: true } };
  const shown = (call) => ({ tool: call.name, arguments: call.args });
  const user = (...parts) => ({ role: "user", parts });

  const whole = await create("say hello");
  report("gemini", { text: whole.text, tokens: whole.usageMetadata.candidatesTokenCount });
  let chunks = await stream("say hello");
  report("gemini stream", {
    text: chunks.map((chunk) => chunk.text ?? "").join(""),
    tokens: chunks.at(-1).usageMetadata.candidatesTokenCount,
  });
  const called = await create("use the tool", config);
  report("gemini tool", shown(called.functionCalls[0]));
  chunks = await stream("use the tool", config);
  report("gemini tool stream", shown(chunks.flatMap((chunk) => chunk.functionCalls ?? [])[0]));
  const { id } = called.functionCalls[0];
  const result = { functionResponse: { id, name: "shell", response: { output: "it worked" } } };
  const turns = [user({ text: "use the tool" }), called.candidates[0].content, user(result)];
  report("gemini tool result", { text: (await create(turns, config)).text });
  const seen = await create([user({ text: "look" }, { inlineData: { data: IMAGE, mimeType: "image/png" } })]);
  report("gemini image", { text: seen.text });
  const count = await client.models.countTokens({ model: "m", contents: "say hello" });
  report("gemini count", { counted: count.totalTokens > 0 });
  report("gemini models", { models: (await all(await client.models.list())).map((model) => model.name) });
  await fails("gemini error", ApiError, create("fail"), (error) => ({
    status: error.status,
    message: JSON.parse(error.message).error.message,
  }));
}

async function wrong_tokens() {
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
  const shown = (error) => ({ status: error.status, code: error.code });
  let asked = openai.chat.completions.create({ model: "m", messages: [say("say hello")] });
  await fails("chat token", OpenAI.AuthenticationError, asked, shown);
  asked = openai.responses.create({ model: "m", input: "say hello" });
  await fails("responses token", OpenAI.AuthenticationError, asked, shown);
  const anthropic = new Anthropic({ baseURL: url, apiKey: "wrong", maxRetries: 0 });
  asked = anthropic.messages.create({ model: "m", max_tokens: 5, messages: [say("say hello")] });
  await fails("messages token", Anthropic.AuthenticationError, asked, (error) => ({
    status: error.status,
    code: error.error.error.type,
  }));
  const google = new GoogleGenAI({ apiKey: "wrong", httpOptions: { baseUrl: url } });
  asked = google.models.generateContent({ model: "m", contents: "say hello" });
  await fails("gemini token", ApiError, asked, (error) => ({
    status: error.status,
    code: JSON.parse(error.message).error.status,
  }));
}

const calls = { chat, responses, messages, gemini, wrong_tokens };
for (const gateway of JSON.parse(process.argv[2])) {
  ({ url, token } = gateway);
  for (const part of gateway.parts) await calls[part]();
  console.log();
}
