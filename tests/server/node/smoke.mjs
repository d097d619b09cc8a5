// Speaks to the server at the URL given with the official client; prints what it got as one line of JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const request = { model, messages: [{ role: "user", content: "Hi" }], max_completion_tokens: 8, temperature: 0 };
const whole = await client.chat.completions.create(request);
const streamed = { text: "", usage: null, finishReason: null };
const stream = await client.chat.completions.create({
  ...request,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed.text += chunk.choices[0]?.delta.content ?? "";
  streamed.finishReason = chunk.choices[0]?.finish_reason ?? streamed.finishReason;
  streamed.usage = chunk.usage ?? streamed.usage;
}
let refused = null;
try {
  await client.chat.completions.create({ ...request, temperature: -1 });
} catch (error) {
  refused = { isBadRequest: error instanceof OpenAI.BadRequestError, param: error.param };
}
const choice = whole.choices[0];
console.log(
  JSON.stringify({
    model,
    whole: { text: choice.message.content, usage: whole.usage, finishReason: choice.finish_reason },
    streamed,
    refused,
  }),
);
