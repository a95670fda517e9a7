//! Events to a response: collected, or as server-sent events.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response, Sse,
        sse::{self, KeepAlive},
    },
};
use futures_core::Stream;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    answer::{Answer, Sent, Shape},
    error::ApiError,
    http,
    queue::Event,
};

/// The events of all choices of a request. Dropped with the response, which ends the jobs.
pub(super) type Events = UnboundedReceiver<(usize, Event)>;

/// A request on its way.
pub(super) struct Started {
    pub(super) events: Events,
    pub(super) answer: Answer,
    pub(super) shape: Box<dyn Shape>,
    /// The answer is told as it comes.
    pub(super) stream: bool,
}

/// Answers with the whole, or with a stream that says something every `ping` at least.
pub(super) async fn respond(
    started: Started,
    ping: Option<Duration>,
) -> Result<Response, ApiError> {
    let Started { events, mut answer, shape, stream } = started;
    answer.is_streamed = stream;
    if !stream {
        return collect(events, answer, shape).await;
    }
    let stream = Chunks { events, answer, shape, ready: VecDeque::new(), end: false };
    let mut response = match ping {
        Some(ping) => Sse::new(stream)
            .keep_alive(KeepAlive::new().interval(ping).text("ping"))
            .into_response(),
        None => Sse::new(stream).into_response(),
    };
    // nginx holds streams back otherwise.
    let no = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response.headers_mut().extend([no]);
    Ok(response)
}

async fn collect(
    mut events: Events,
    mut answer: Answer,
    shape: Box<dyn Shape>,
) -> Result<Response, ApiError> {
    while !answer.is_done() {
        let (choice, event) = events.recv().await.ok_or_else(gone)?;
        answer.take(choice, event)?;
    }
    tracing::info!("{}", answer.summary());
    Ok(http::json(&shape.whole(&answer)))
}

/// The engine's thread has ended.
fn gone() -> ApiError {
    ApiError::server("the engine has stopped")
}

/// The chunks of an answer.
struct Chunks {
    events: Events,
    answer: Answer,
    shape: Box<dyn Shape>,
    ready: VecDeque<sse::Event>,
    /// Nothing comes after what is ready.
    end: bool,
}

impl Chunks {
    fn take(&mut self, event: Option<(usize, Event)>) {
        let taken = match event {
            Some((choice, event)) => self.answer.take(choice, event).map(|all| (choice, all)),
            None => Err(gone()),
        };
        match taken {
            Ok((choice, updates)) => {
                for update in updates {
                    let sent = self.shape.stream(&self.answer, choice, &update);
                    self.ready.extend(sent.into_iter().map(event_of));
                }
                if self.answer.is_done() {
                    tracing::info!("{}", self.answer.summary());
                    self.ready.extend(self.shape.end().map(|end| sse::Event::default().data(end)));
                    self.end = true;
                }
            }
            Err(error) => {
                self.ready.push_back(event_of(self.shape.error(&error)));
                self.end = true;
            }
        }
        if self.end {
            self.events.close();
        }
    }
}

fn event_of(sent: Sent) -> sse::Event {
    let event = sse::Event::default();
    match sent {
        Sent::Data(data) => event.data(data.to_string()),
        Sent::Event(data) => {
            let name = data.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
            event.event(name).data(data.to_string())
        }
        Sent::Comment(text) => event.comment(text),
    }
}

impl Stream for Chunks {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.end {
                return Poll::Ready(None);
            }
            let event = ready!(self.events.poll_recv(cx));
            self.take(event);
        }
    }
}
