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
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    answer::{Answer, Sent},
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
    /// The answer is told as it comes.
    pub(super) stream: bool,
}

/// Answers with the whole, or with a stream that says something every `ping` at least.
pub(super) async fn respond(
    started: Started,
    ping: Option<Duration>,
) -> Result<Response, ApiError> {
    let Started { events, answer, stream } = started;
    if !stream {
        return collect(events, answer).await;
    }
    let stream = Chunks { events, answer, ready: VecDeque::new(), end: false };
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

async fn collect(mut events: Events, mut answer: Answer) -> Result<Response, ApiError> {
    while !answer.is_done() {
        let (choice, event) = events.recv().await.ok_or_else(gone)?;
        answer.take(choice, event)?;
    }
    tracing::info!("{}", answer.summary());
    Ok(http::json(&answer.whole()))
}

/// The engine's thread has ended.
fn gone() -> ApiError {
    ApiError::server("the engine has stopped")
}

/// The chunks of an answer.
struct Chunks {
    events: Events,
    answer: Answer,
    ready: VecDeque<sse::Event>,
    /// Nothing comes after what is ready.
    end: bool,
}

impl Chunks {
    fn take(&mut self, event: Option<(usize, Event)>) {
        let sent = match event {
            Some((choice, event)) => self.answer.take(choice, event),
            None => Err(gone()),
        };
        match sent {
            Ok(sent) => {
                self.ready.extend(sent.into_iter().map(|sent| match sent {
                    Sent::Chunk(chunk) => sse::Event::default().data(chunk.to_string()),
                    Sent::Comment(text) => sse::Event::default().comment(text),
                }));
                if self.answer.is_done() {
                    tracing::info!("{}", self.answer.summary());
                    self.ready.push_back(sse::Event::default().data("[DONE]"));
                    self.end = true;
                }
            }
            Err(error) => {
                self.ready.push_back(sse::Event::default().data(error.body().to_string()));
                self.end = true;
            }
        }
        if self.end {
            self.events.close();
        }
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
