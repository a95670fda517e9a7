//! The HTTP server: OpenAI's API over the engine (spec/cli-and-server.md 4).
//!
//! ```text
//! connection ─▶ app (routes, keys) ─▶ chat, … ─▶ request ─▶ queue ─▶ scheduler ─▶ slots
//!      ▲                                                                           │
//!      └── stream ◀── shape (JSON) ◀── answer (takes the reply apart) ◀── events ◀─┘
//! ```
//!
//! The endpoints `chat`, `completion`, `responses` and `native` read requests; `openai`,
//! `response_events` and `native` tell answers. `page` is for people.
//!
//! The engine runs on one thread, all else on others. Only token ids, text and settings cross
//! between them. A client that leaves drops the receiver of its events; the engine sees that
//! before the next step and frees the slot. What slots hold `keeping` moves to files and back.

mod answer;
mod app;
mod chat;
mod completion;
mod conversations;
mod error;
mod fields;
mod format;
mod host;
mod http;
mod info;
mod keeping;
mod logprobs;
mod messages;
mod native;
mod openai;
mod page;
mod queue;
mod request;
mod response_events;
mod responses;
mod scheduler;
mod slot;
mod slots;
mod status;
mod store;
mod stream;
mod together;
mod tools;

use std::{
    net::TcpListener,
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, mpsc::Receiver},
    thread,
    time::Duration,
};

use serde_json::json;

use crate::{
    Engine, Error, Result,
    generate::GenerateOptions,
    history::CheckpointOptions,
    sample::PartialSampling,
    text::{ChatTemplate, RenderOptions},
};
use app::{App, Model};
use queue::Queue;
use scheduler::Scheduler;
use status::{Now, Status};
use store::Store;

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
    /// Where conversations are kept.
    pub sessions: Option<SessionOptions>,
    /// Silence after which a stream sends a comment, so that nobody in between gives up on it.
    pub ping: Option<Duration>,
}

/// Where and how conversations are kept.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The directory, which is made if it is not there.
    pub folder: PathBuf,
    /// Bytes that files may take that were saved without being asked for.
    pub space: u64,
    /// Time without requests after which they are saved.
    pub idle: Duration,
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

/// Between attempts to load again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Serves on `listener` until `stop` receives something, and then saves what is to be kept; the
/// engine runs on the calling thread. Until `load` has returned the model, requests are told to
/// wait. After a failure of the device it is called again, which opens the device again.
///
/// # Errors
/// What the first `load` returns, or [`Error::Io`] if the system has no threads or sockets left or
/// the directory of sessions cannot be read.
pub fn serve(
    listener: TcpListener,
    options: ServeOptions,
    load: impl Fn() -> Result<Loaded>,
    stop: Receiver<()>,
) -> Result<()> {
    let network = |error| Error::io("the HTTP server", error);
    let queue = Arc::new(Queue::new(options.queue.max(options.slots)));
    let status = Arc::new(Status::new(options.slots));
    let local = listener.local_addr().map_err(network)?.ip().is_loopback();
    let app = Arc::new(App {
        local: local && options.api_keys.is_empty(),
        keys: options.api_keys,
        slots: options.slots,
        queue: queue.clone(),
        status: status.clone(),
        generate: options.generate,
        render: options.render,
        reuse: options.reuse,
        sessions: options.sessions.as_ref().map(|sessions| sessions.folder.clone()),
        ping: options.ping,
        model: Mutex::default(),
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

    let closing = queue.clone();
    let stopped = move || stop.recv().iter().for_each(|()| closing.close());
    thread::Builder::new().name("stop".into()).spawn(stopped).map_err(network)?;

    let mut loaded = load()?;
    loop {
        warm_up(&mut loaded.engine)?;
        status.update(|now| now.memory = loaded.engine.memory());
        let (model, engine) = loaded.split();
        let sessions = options.sessions.as_ref();
        let store = sessions.map(|SessionOptions { folder, space, idle }| {
            Store::open(folder, *space, &engine).map(|store| (store, *idle))
        });
        let store = store.transpose()?;
        app.set_model(Some(Arc::new(model)));
        let scheduler = Scheduler::new(
            engine,
            options.slots,
            store,
            options.checkpoints,
            queue.clone(),
            status.clone(),
        );
        let Some(fault) = scheduler.run() else { return Ok(()) };
        tracing::error!("the device has failed and is opened again: {fault}");
        status.update(Now::fail);
        app.set_model(None);
        queue.fail(&fault);
        let Some(again) = again(&load, &queue) else { return Ok(()) };
        loaded = again;
    }
}

/// What `load` returns as soon as it succeeds, for a driver may take a while to recover; nothing
/// once `queue` is closed.
fn again(load: &impl Fn() -> Result<Loaded>, queue: &Queue) -> Option<Loaded> {
    let mut pause = Duration::from_secs(1);
    while !queue.is_closed() {
        match load() {
            Ok(loaded) => return Some(loaded),
            Err(error) => tracing::error!("loading again has failed: {error}"),
        }
        queue.wait_closed(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    None
}

impl Loaded {
    /// What the HTTP threads need, and what the engine's does.
    fn split(self) -> (Model, Engine) {
        let Self { engine, name, template, sampling } = self;
        let config = engine.config();
        let meta = json!({
            "n_vocab": config.n_vocab,
            "n_ctx": engine.context(),
            "n_ctx_train": config.context_length,
            "n_embd": config.n_embd,
            "architecture": config.arch,
            "size": engine.memory().device.weights,
        });
        let model = Model {
            name,
            created: answer::now(),
            tokenizer: engine.tokenizer().clone(),
            template,
            sampling,
            constraints: OnceLock::new(),
            context: engine.context() as usize,
            n_vocab: config.n_vocab,
            meta,
        };
        (model, engine)
    }
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
    engine.logits(&sequences[0])?;
    // Memory is planned for as many sequences, and no more.
    drop(sequences);
    engine.compile_prefill()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpStream},
        sync::mpsc,
        time::Instant,
    };

    use serde_json::Value;

    use super::*;
    use crate::{EngineOptions, demo};

    /// Status and JSON of the answer to a request.
    fn ask(address: SocketAddr, head: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    fn options(sessions: Option<SessionOptions>) -> ServeOptions {
        ServeOptions {
            slots: 2,
            queue: 4,
            api_keys: Vec::new(),
            generate: GenerateOptions { max_tokens: Some(8), ..Default::default() },
            render: RenderOptions::default(),
            reuse: true,
            checkpoints: CheckpointOptions { memory: 1 << 20, count: 4, every: 512 },
            sessions,
            ping: None,
        }
    }

    fn demo(context: u32) -> Result<Loaded> {
        let options = EngineOptions { context: Some(context), ..Default::default() };
        let engine = Engine::from_gguf(&demo::open()?, &options, &mut |_, _| {})?;
        let sampling = PartialSampling { temperature: Some(0.0), ..Default::default() };
        Ok(Loaded { engine, name: "demo".into(), template: None, sampling })
    }

    #[track_caller]
    fn eventually(is: impl Fn() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < Duration::from_secs(60), "it never came to pass");
            thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn what_slots_hold_is_saved_at_rest_and_at_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let folder = std::env::temp_dir().join(format!("engine-rest-{}", std::process::id()));
        let idle = Duration::from_millis(200);
        let sessions = SessionOptions { folder: folder.clone(), space: 1 << 30, idle };
        let (stop, stopped) = mpsc::channel();
        let served =
            thread::spawn(move || serve(listener, options(Some(sessions)), || demo(1024), stopped));
        eventually(|| ask(address, "GET /health", "").0 == 200);
        let complete = |from: u32| {
            let prompt: Vec<u32> = (from..from + 600).collect();
            let body = json!({"prompt": prompt}).to_string();
            assert_eq!(ask(address, "POST /v1/completions", &body).0, 200);
        };
        let files = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
        complete(1);
        eventually(|| files() == 1);
        complete(2);
        stop.send(()).unwrap();
        served.join().unwrap().unwrap();
        assert_eq!(files(), 2);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// The file that a prompt goes on from is not written over with what makes way for it.
    #[test]
    fn a_file_is_not_written_over_before_it_is_loaded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let folder = std::env::temp_dir().join(format!("engine-turns-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        // Without room for two files, neither goes.
        let idle = Duration::from_secs(600);
        let sessions = SessionOptions { folder: folder.clone(), space: 1, idle };
        let options = ServeOptions { slots: 1, ..options(Some(sessions)) };
        let (stop, stopped) = mpsc::channel();
        let served = thread::spawn(move || serve(listener, options, || demo(1024), stopped));
        eventually(|| ask(address, "GET /health", "").0 == 200);
        let cached = |own: std::ops::Range<u32>| {
            let prompt: Vec<u32> = (1..301).chain(own).collect();
            let body = json!({"prompt": prompt, "max_tokens": 0, "session": "x"}).to_string();
            let (status, answer) = ask(address, "POST /v1/completions", &body);
            assert_eq!(status, 200, "{answer}");
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        cached(301..801);
        let file = json!({"filename": "x.auto"}).to_string();
        assert_eq!(ask(address, "POST /slots/0?action=save", &file).0, 200);
        cached(500..800);
        assert_eq!(cached(301..804), 800);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
        stop.send(()).unwrap();
        served.join().unwrap().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_server_that_is_to_end_does_not_load_again() {
        let queue = Queue::new(1);
        let failed = || {
            queue.close();
            Err(Error::Device("it is gone".into()))
        };
        assert!(again(&failed, &queue).is_none());
    }

    #[test]
    fn a_lost_device_is_opened_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = mpsc::channel();
        let (sender, devices) = mpsc::channel();
        let load = move || {
            let loaded = demo(256)?;
            let destroyer = loaded.engine.gpu().destroyer();
            sender.send(Box::new(destroyer) as Box<dyn Fn() + Send>).unwrap();
            Ok(loaded)
        };
        thread::spawn(move || serve(listener, options(None), load, stopped));
        let serves = || eventually(|| ask(address, "GET /health", "").0 == 200);
        let complete = || ask(address, "POST /v1/completions", "{\"prompt\": \"Once\"}");
        serves();
        let (status, first) = complete();
        assert_eq!(status, 200, "{first}");
        let lose: Box<dyn Fn() + Send> = devices.recv().unwrap();
        lose();
        let (status, failed) = complete();
        assert_eq!(status, 500, "{failed}");
        assert_eq!(failed["error"]["type"], "server_error");
        assert!(devices.recv().is_ok(), "loaded again");
        serves();
        let (status, second) = complete();
        assert_eq!(status, 200, "{second}");
        assert_eq!(second["choices"], first["choices"]);
    }
}
