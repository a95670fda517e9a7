//! The crate `async-openai` against a running server of the demo model:
//!
//! ```sh
//! engine serve -np 8 -c 2048 &
//! cargo run --manifest-path tests/all/serve/clients/async_openai/Cargo.toml -- http://127.0.0.1:8080
//! ```

use async_openai::{
    Client,
    config::OpenAIConfig,
    error::OpenAIError,
    types::{
        chat::{CreateChatCompletionRequest, FinishReason},
        responses::{CreateResponse, ResponseStreamEvent, Status},
    },
};
use futures::StreamExt;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let address = std::env::args().nth(1).ok_or("usage: async-openai-suite ADDRESS")?;
    let config = OpenAIConfig::new().with_api_base(format!("{address}/v1")).with_api_key("none");
    let client = Client::with_config(config);
    assert_eq!(client.models().list().await?.data.len(), 1);
    let text = chat(&client).await?;
    schemas_and_tools(&client).await?;
    responses(&client).await?;
    errors(&client).await;
    parallel(&client, &text).await?;
    println!("async-openai works");
    Ok(())
}

fn request(fields: Value) -> CreateChatCompletionRequest {
    let mut body = json!({
        "model": "any", "messages": [{"role": "user", "content": "Tell me a story."}],
        "temperature": 0, "max_completion_tokens": 24,
    });
    for (key, value) in fields.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    serde_json::from_value(body).expect("a request")
}

async fn chat(client: &Client<OpenAIConfig>) -> Result<String> {
    let whole = client.chat().create(request(json!({}))).await?;
    let text = whole.choices[0].message.content.clone().unwrap_or_default();
    assert!(!text.is_empty());
    assert!(whole.usage.is_some_and(|usage| usage.completion_tokens <= 24));
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut stream = client.chat().create_stream(request(options)).await?;
    let (mut streamed, mut usage) = (String::new(), None);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        streamed.extend(chunk.choices.first().and_then(|c| c.delta.content.clone()));
        usage = chunk.usage.or(usage);
    }
    assert_eq!(streamed, text);
    assert!(usage.is_some());
    Ok(text)
}

async fn schemas_and_tools(client: &Client<OpenAIConfig>) -> Result<()> {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["n"], "additionalProperties": false});
    let check = |text: &str| {
        let value: Value = serde_json::from_str(text).expect("JSON");
        assert!((1..10).contains(&value["n"].as_u64().expect("a number")), "{text}");
    };
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}});
    let fields = json!({"response_format": format, "temperature": 1.5, "max_completion_tokens": 100});
    let answer = client.chat().create(request(fields)).await?;
    check(answer.choices[0].message.content.as_deref().unwrap_or_default());
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let fields = json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
        "max_completion_tokens": 400});
    let answer = client.chat().create(request(fields)).await?;
    assert_eq!(answer.choices[0].finish_reason, Some(FinishReason::ToolCalls));
    let calls = serde_json::to_value(&answer.choices[0].message.tool_calls)?;
    check(calls[0]["function"]["arguments"].as_str().unwrap_or_default());
    Ok(())
}

async fn responses(client: &Client<OpenAIConfig>) -> Result<()> {
    let request = |stream: bool| -> CreateResponse {
        serde_json::from_value(json!({"model": "any", "input": "Tell me a story.", "temperature": 0.0,
            "max_output_tokens": 24, "stream": stream}))
        .expect("a request")
    };
    let whole = client.responses().create(request(false)).await?;
    assert!(matches!(whole.status, Status::Incomplete | Status::Completed));
    let mut stream = client.responses().create_stream(request(true)).await?;
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        if let ResponseStreamEvent::ResponseOutputTextDelta(delta) = event? {
            text += &delta.delta;
        }
    }
    assert_eq!(Some(text), whole.output_text());
    Ok(())
}

async fn errors(client: &Client<OpenAIConfig>) {
    match client.chat().create(request(json!({"top_p": 7.0}))).await {
        Err(OpenAIError::ApiError(error)) => {
            let text = format!("{error:?}");
            assert!(text.contains("top_p"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

async fn parallel(client: &Client<OpenAIConfig>, expected: &str) -> Result<()> {
    let asks = (0..8).map(async |_| client.chat().create(request(json!({}))).await);
    for answer in futures::future::join_all(asks).await {
        assert_eq!(answer?.choices[0].message.content.as_deref(), Some(expected));
    }
    Ok(())
}
