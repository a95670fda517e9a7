//! The HTTP server: OpenAI's API over the engine (spec/cli-and-server.md 4).
//!
//! ```text
//! connection ─▶ app (routes, keys) ─▶ chat, completion ─▶ request ─▶ queue ─▶ scheduler ─▶ slots
//!      ▲                                                                                    │
//!      └────────────── stream ◀── answer (parses the reply, makes JSON) ◀── events ◀────────┘
//! ```
//!
//! The engine runs on one thread, all else on others. Only token ids, text and settings cross
//! between them. A client that leaves drops the receiver of its events; the engine sees that
//! before the next step and frees the slot.

mod answer;
mod app;
mod chat;
mod completion;
mod error;
mod fields;
mod format;
mod http;
mod info;
mod logprobs;
mod messages;
mod page;
mod queue;
mod request;
mod reuse;
mod scheduler;
mod slot;
mod status;
mod stream;
mod together;
mod tools;

use std::{
    net::TcpListener,
    ops::ControlFlow,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use serde_json::json;

pub use reuse::CheckpointOptions;

use crate::{
    Engine, Error, Result,
    generate::GenerateOptions,
    sample::PartialSampling,
    text::{ChatTemplate, RenderOptions},
};
use app::{App, Model};
use queue::Queue;
use scheduler::Scheduler;
use status::Status;

/// How to serve.
pub struct ServeOptions {
    /// Requests that run side by side, each with a context of its own.
    pub slots: usize,
    /// Requests that can wait for a slot.
    pub queue: usize,
    /// Keys of which every request but for health needs one; none: everybody may ask.
    pub api_keys: Vec<String>,
    /// When generation ends, where the request does not say.
    pub generate: GenerateOptions,
    /// What the template is told, where the request does not say.
    pub render: RenderOptions,
    /// Use what earlier requests have left, where the request does not say.
    pub reuse: bool,
    /// Checkpoints of earlier requests.
    pub checkpoints: CheckpointOptions,
    /// Silence after which a stream sends a comment, so that nobody in between gives up on it.
    pub ping: Option<Duration>,
}

/// A loaded model and how to speak with it.
pub struct Loaded {
    /// The model.
    pub engine: Engine,
    /// Its name for clients.
    pub name: String,
    /// The template of conversations.
    pub template: Option<Arc<ChatTemplate>>,
    /// How to choose tokens, where the request does not say.
    pub sampling: PartialSampling,
}

/// Threads for parsing, templates and tokenising.
const WORKERS: usize = 8;

/// Serves on `listener` for ever; the engine runs on the calling thread. Until `load` has returned
/// the model, requests are told to wait.
///
/// # Errors
/// What `load` returns, or [`Error::Io`] if the system has no threads or sockets left.
pub fn serve(
    listener: TcpListener,
    options: ServeOptions,
    load: impl FnOnce() -> Result<Loaded>,
) -> Result<std::convert::Infallible> {
    let network = |error| Error::io("the HTTP server", error);
    let queue = Arc::new(Queue::new(options.queue.max(options.slots)));
    let status = Arc::new(Status::new(options.slots));
    let app = Arc::new(App {
        keys: options.api_keys,
        slots: options.slots,
        queue: queue.clone(),
        status: status.clone(),
        generate: options.generate,
        render: options.render,
        reuse: options.reuse,
        ping: options.ping,
        model: OnceLock::new(),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(WORKERS)
        .enable_io()
        .enable_time()
        .build()
        .map_err(network)?;
    listener.set_nonblocking(true).map_err(network)?;
    let listener = {
        let _context = runtime.enter();
        tokio::net::TcpListener::from_std(listener).map_err(network)?
    };
    let router = app::router(app.clone());
    let http = move || runtime.block_on(async { axum::serve(listener, router).await });
    thread::Builder::new().name("http".into()).spawn(http).map_err(network)?;

    let Loaded { mut engine, name, template, sampling } = load()?;
    warm_up(&mut engine)?;
    let config = engine.config();
    let meta = json!({
        "n_vocab": config.n_vocab,
        "n_ctx": engine.context(),
        "n_ctx_train": config.context_length,
        "n_embd": config.n_embd,
        "architecture": config.arch,
        "size": engine.memory().device.weights,
    });
    let model = Arc::new(Model {
        name,
        created: answer::now(),
        tokenizer: engine.tokenizer().clone(),
        template,
        sampling,
        constraints: OnceLock::new(),
        context: engine.context() as usize,
        n_vocab: config.n_vocab,
        meta,
    });
    status.update(|now| now.memory = engine.memory());
    // Set once: nobody else does.
    app.model.get_or_init(|| model);
    Scheduler::new(engine, options.slots, options.checkpoints, queue, status).run()
}

/// Has the kernels of prompts and of decoding compiled, for any number of sequences that step
/// together: the first requests would wait for them.
fn warm_up(engine: &mut Engine) -> Result<()> {
    let mut sequence = engine.new_sequence()?;
    let prompt = vec![0; 16.min(engine.context() as usize)];
    engine.prefill(&mut sequence, &prompt, &mut |_| ControlFlow::Continue(()))?;
    engine.clear(&mut sequence);
    let others = (1..engine.together()).map(|_| engine.new_sequence());
    let mut sequences = others.collect::<Result<Vec<_>>>()?;
    sequences.push(sequence);
    for columns in [1, 2, 4, 8] {
        if columns < 2 * engine.together() {
            let each = sequences.iter_mut().take(columns).map(|sequence| (sequence, 0));
            engine.decode_each(&mut each.collect::<Vec<_>>())?;
        }
    }
    engine.logits(&sequences[0]).map(drop)
}
