"""Asks gateways with the official Python libraries; prints what they understood, one line of JSON per call.

Input: a line of JSON, a list of gateways with `url`, `token` and `parts`. An empty line ends the output of each.
`sdks.mjs` makes the same calls with the libraries for Node.
"""

import base64
import json
import sys

import anthropic
import openai
from google import genai
from google.genai import types

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def report(name, **found):
    print(json.dumps({"call": name, **found}, separators=(",", ":")), flush=True)


def say(text):
    return {"role": "user", "content": text}


def chat():
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)
    create = lambda *messages, **more: client.chat.completions.create(model="m", messages=messages, **more)
    tools = [{"type": "function", "function": {"name": "shell", "parameters": SCHEMA}}]
    shown = lambda call: {"tool": call.function.name, "arguments": json.loads(call.function.arguments)}

    whole = create(say("say hello"))
    report("chat", text=whole.choices[0].message.content, tokens=whole.usage.completion_tokens)
    chunks = list(create(say("say hello"), stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    report("chat stream", text=text, usage=any(chunk.usage for chunk in chunks))
    chunks = create(say("say hello"), stream=True, stream_options={"include_usage": True})
    report("chat stream usage", tokens=[chunk.usage.completion_tokens for chunk in chunks if chunk.usage])
    message = create(say("use the tool"), tools=tools).choices[0].message
    report("chat tool", **shown(message.tool_calls[0]))
    with client.chat.completions.stream(model="m", messages=[say("use the tool")], tools=tools) as stream:
        report("chat tool stream", **shown(stream.get_final_completion().choices[0].message.tool_calls[0]))
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "it worked"}
    answer = create(say("use the tool"), message.to_dict(), result, tools=tools)
    report("chat tool result", text=answer.choices[0].message.content)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    seen = create(say([{"type": "text", "text": "look"}, image]))
    report("chat image", text=seen.choices[0].message.content)
    report("chat models", models=[model.id for model in client.models.list()])
    try:
        create(say("fail"))
    except openai.BadRequestError as error:
        report("chat error", status=error.status_code, message=error.body["message"])


def responses():
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)
    create = lambda input, **more: client.responses.create(model="m", input=input, **more)
    tools = [{"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False}]
    calls = lambda answer: [item for item in answer.output if item.type == "function_call"]
    shown = lambda call: {"tool": call.name, "arguments": json.loads(call.arguments)}

    whole = create("say hello")
    report("responses", text=whole.output_text, tokens=whole.usage.output_tokens)
    with client.responses.stream(model="m", input="say hello") as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    report("responses stream", text=deltas, final=final.output_text, tokens=final.usage.output_tokens)
    called = create("use the tool", tools=tools)
    report("responses tool", **shown(calls(called)[0]))
    with client.responses.stream(model="m", input="use the tool", tools=tools) as stream:
        report("responses tool stream", **shown(calls(stream.get_final_response())[0]))
    result = {"type": "function_call_output", "call_id": calls(called)[0].call_id, "output": "it worked"}
    answer = create([say("use the tool"), *[item.to_dict() for item in called.output], result], tools=tools)
    report("responses tool result", text=answer.output_text)
    image = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{IMAGE}"}
    seen = create([say([{"type": "input_text", "text": "look"}, image])])
    report("responses image", text=seen.output_text)
    count = client.responses.input_tokens.count(model="m", input="say hello")
    report("responses count", counted=count.input_tokens > 0)
    try:
        create("fail")
    except openai.BadRequestError as error:
        report("responses error", status=error.status_code, message=error.body["message"])


def messages():
    client = anthropic.Anthropic(base_url=url, api_key=token, max_retries=0)
    ask = lambda *messages, **more: {"model": "m", "max_tokens": 100, "messages": messages, **more}
    tools = [{"name": "shell", "description": "Runs a command.", "input_schema": SCHEMA}]
    calls = lambda answer: [block for block in answer.content if block.type == "tool_use"]
    shown = lambda call: {"tool": call.name, "arguments": call.input}

    whole = client.messages.create(**ask(say("say hello")))
    report("messages", text=whole.content[0].text, tokens=whole.usage.output_tokens)
    with client.messages.stream(**ask(say("say hello"))) as stream:
        text = "".join(stream.text_stream)
        tokens = stream.get_final_message().usage.output_tokens
    report("messages stream", text=text, tokens=tokens)
    called = client.messages.create(**ask(say("use the tool"), tools=tools))
    report("messages tool", **shown(calls(called)[0]))
    with client.messages.stream(**ask(say("use the tool"), tools=tools)) as stream:
        report("messages tool stream", **shown(calls(stream.get_final_message())[0]))
    result = {"type": "tool_result", "tool_use_id": calls(called)[0].id, "content": "it worked"}
    earlier = {"role": "assistant", "content": [block.to_dict() for block in called.content]}
    answer = client.messages.create(**ask(say("use the tool"), earlier, say([result]), tools=tools))
    report("messages tool result", text=answer.content[0].text)
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    seen = client.messages.create(**ask(say([{"type": "text", "text": "look"}, {"type": "image", "source": source}])))
    report("messages image", text=seen.content[0].text)
    count = client.messages.count_tokens(model="m", messages=[say("say hello")])
    report("messages count", counted=count.input_tokens > 0)
    report("messages models", models=[model.id for model in client.models.list()])
    try:
        client.messages.create(**ask(say("fail")))
    except anthropic.BadRequestError as error:
        report("messages error", status=error.status_code, message=error.body["error"]["message"])


def gemini():
    client = genai.Client(api_key=token, http_options=types.HttpOptions(base_url=url))
    create = lambda contents, **more: client.models.generate_content(model="m", contents=contents, **more)
    shell = types.FunctionDeclaration(name="shell", description="Runs a command.", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[shell])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    shown = lambda call: {"tool": call.name, "arguments": call.args}
    user = lambda part: types.Content(role="user", parts=[part])

    whole = create("say hello")
    report("gemini", text=whole.text, tokens=whole.usage_metadata.candidates_token_count)
    chunks = list(client.models.generate_content_stream(model="m", contents="say hello"))
    tokens = chunks[-1].usage_metadata.candidates_token_count
    report("gemini stream", text="".join(chunk.text or "" for chunk in chunks), tokens=tokens)
    called = create("use the tool", config=config)
    report("gemini tool", **shown(called.function_calls[0]))
    chunks = client.models.generate_content_stream(model="m", contents="use the tool", config=config)
    report("gemini tool stream", **shown([call for chunk in chunks for call in chunk.function_calls or []][0]))
    result = types.Part.from_function_response(name="shell", response={"output": "it worked"})
    result.function_response.id = called.function_calls[0].id
    question = user(types.Part.from_text(text="use the tool"))
    answer = create([question, called.candidates[0].content, user(result)], config=config)
    report("gemini tool result", text=answer.text)
    seen = create(["look", types.Part.from_bytes(data=base64.b64decode(IMAGE), mime_type="image/png")])
    report("gemini image", text=seen.text)
    count = client.models.count_tokens(model="m", contents="say hello")
    report("gemini count", counted=count.total_tokens > 0)
    report("gemini models", models=[model.name for model in client.models.list()])
    try:
        create("fail")
    except genai.errors.ClientError as error:
        report("gemini error", status=error.code, message=error.message)


def wrong_tokens():
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    try:
        client.chat.completions.create(model="m", messages=[say("say hello")])
    except openai.AuthenticationError as error:
        report("chat token", status=error.status_code, code=error.code)
    try:
        client.responses.create(model="m", input="say hello")
    except openai.AuthenticationError as error:
        report("responses token", status=error.status_code, code=error.code)
    client = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
    try:
        client.messages.create(model="m", max_tokens=5, messages=[say("say hello")])
    except anthropic.AuthenticationError as error:
        report("messages token", status=error.status_code, code=error.body["error"]["type"])
    client = genai.Client(api_key="wrong", http_options=types.HttpOptions(base_url=url))
    try:
        client.models.generate_content(model="m", contents="say hello")
    except genai.errors.ClientError as error:
        report("gemini token", status=error.code, code=error.status)


for gateway in json.loads(sys.stdin.readline()):
    url, token = gateway["url"], gateway["token"]
    for part in gateway["parts"]:
        globals()[part]()
    print(flush=True)
