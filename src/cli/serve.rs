//! `engine serve`: the HTTP server.

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    time::Duration,
};

use clap::Args;
use engine::{
    Error, Result,
    history::CheckpointOptions,
    plan::Checkpoints,
    serve::{self, Loaded, ServeOptions, SessionOptions},
};

use super::{
    args::{GenerateArgs, ModelArgs, SamplingArgs, parse_bytes},
    output,
    prompt::TemplateArgs,
    session,
};

/// Flags of `engine serve`.
#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    template: TemplateArgs,
}

/// Who may ask, and how many at once.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// Address to listen on; 0.0.0.0 lets other machines in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", env = "LLAMA_ARG_HOST")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080, env = "LLAMA_ARG_PORT")]
    port: u16,
    /// Keys, separated by commas, of which every request but for /health needs one
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    #[arg(env = "LLAMA_API_KEY", hide_env_values = true)]
    api_key: Vec<String>,
    /// Read keys from a file, one a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Name of the model for clients [default: the file's name]
    #[arg(short, long, value_name = "NAME", env = "LLAMA_ARG_ALIAS")]
    alias: Option<String>,
    /// Requests that run side by side; each has --ctx-size tokens of context
    #[arg(long, value_name = "N", default_value_t = 1, env = "LLAMA_ARG_N_PARALLEL")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
    /// Requests that can wait for a slot; more are told to come again
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: u16,
    /// Process every prompt from its start
    #[arg(long)]
    no_cache_prompt: bool,
    /// Host memory for points to go on from when a prompt has changed; with K, M or G behind the
    /// number, of 1024
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_bytes)]
    checkpoint_memory: u64,
    /// Most such points of a slot
    #[arg(long, value_name = "N", default_value_t = 32)]
    ctx_checkpoints: u16,
    /// One is taken at least every N tokens of a prompt
    #[arg(long, value_name = "N", default_value_t = 8192)]
    #[arg(value_parser = clap::value_parser!(u32).range(64..))]
    checkpoint_min_step: u32,
    /// Keep conversations in this directory: saved when the server ends, when it has nothing to do
    /// or when a slot is needed, and loaded when a prompt starts like one
    #[arg(long, alias = "slot-save-path", value_name = "DIR")]
    session_dir: Option<PathBuf>,
    /// Room for them on the disk; the oldest go first. With K, M or G behind the number, of 1024
    #[arg(long, value_name = "BYTES", default_value = "32G", value_parser = parse_bytes)]
    session_space: u64,
    /// Seconds of silence after which a stream sends a comment; -1 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..))]
    sse_ping_interval: i32,
}

/// Time without requests after which conversations are saved: longer than it takes to read an
/// answer and ask again.
const IDLE: Duration = Duration::from_secs(60);

/// Runs `engine serve`.
pub(super) fn run(args: &ServeArgs) -> Result<()> {
    // Wrong flags must not cost the time of loading.
    args.sampling.partial().or_default().validate()?;
    let server = &args.server;
    let options = ServeOptions {
        slots: server.parallel.into(),
        queue: server.queue.into(),
        api_keys: server.keys()?,
        generate: args.generate.options(),
        render: args.template.render_options(),
        reuse: !server.no_cache_prompt,
        checkpoints: CheckpointOptions {
            memory: server.checkpoint_memory,
            count: server.ctx_checkpoints.into(),
            every: server.checkpoint_min_step as usize,
        },
        sessions: server.sessions()?,
        ping: u64::try_from(server.sse_ping_interval.max(-1))
            .ok()
            .map(|s| Duration::from_secs(s.max(1))),
    };
    let address = format!("{}:{}", server.host, server.port);
    let bound = TcpListener::bind((server.host.as_str(), server.port));
    let listener = bound.map_err(|e| Error::io(&address, e))?;
    let local = listener.local_addr().map_err(|e| Error::io(&address, e))?;
    if !local.ip().is_loopback() && options.api_keys.is_empty() {
        output::note("anyone who can reach this machine may use the server: see --api-key");
    }
    let loading = Arc::new(AtomicBool::new(true));
    let load = || {
        loading.store(true, Ordering::Relaxed);
        let options = args.model.options(server.parallel, server.checkpoints());
        let engine = session::load(&args.model, &options)?;
        let template = args.template.template(engine.tokenizer())?.map(Arc::new);
        let template = template.or_else(|| engine.template().cloned());
        let sampling = args.sampling.partial().or(engine.sampling().clone());
        output::note(format_args!("sampling: {}", sampling.clone().or_default()));
        if template.is_none() {
            output::note("the file has no chat template: only /v1/completions works");
        }
        output::note(format_args!("serving on http://{local}"));
        loading.store(false, Ordering::Relaxed);
        Ok(Loaded { engine, name: args.name(), template, sampling })
    };
    // Without anything to save it ends as any program does.
    let (_never, nothing) = mpsc::channel();
    let stop = if options.sessions.is_some() { stop(loading.clone()) } else { nothing };
    serve::serve(listener, options, load, stop)
}

impl ServeArgs {
    /// The model's name for clients.
    fn name(&self) -> String {
        let stem = self.model.model.as_ref().and_then(|path| path.file_stem());
        let stem = stem.map(|stem| stem.to_string_lossy().into_owned());
        self.server.alias.clone().or(stem).unwrap_or_else(|| "demo".into())
    }
}

/// Receives something when the server is to end: Ctrl-C, or the system's wish. Asked again, it ends
/// at once, as it does while it is `loading` and has nothing to save.
fn stop(loading: Arc<AtomicBool>) -> Receiver<()> {
    let (sender, stop) = mpsc::channel();
    let handler = move || {
        if loading.load(Ordering::Relaxed) {
            process::exit(130);
        }
        output::note("ending; press Ctrl-C again to end without saving");
        if sender.send(()).is_err() {
            process::exit(130);
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        output::note(format_args!("nothing is saved when the server ends: {error}"));
    }
    stop
}

impl ServerArgs {
    /// Where conversations are kept.
    fn sessions(&self) -> Result<Option<SessionOptions>> {
        let Some(folder) = self.session_dir.clone() else { return Ok(None) };
        fs::create_dir_all(&folder).map_err(|e| Error::io(&folder, e))?;
        Ok(Some(SessionOptions { folder, space: self.session_space, idle: IDLE }))
    }

    /// What is planned of memory for checkpoints.
    fn checkpoints(&self) -> Checkpoints {
        Checkpoints { memory: self.checkpoint_memory, count: self.ctx_checkpoints.into() }
    }

    fn keys(&self) -> Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
            keys.extend(text.lines().map(|line| line.trim().to_owned()));
        }
        keys.retain(|key| !key.is_empty());
        if keys.is_empty() && (self.api_key_file.is_some() || !self.api_key.is_empty()) {
            return Err(Error::Usage("--api-key: there is no key in it".into()));
        }
        Ok(keys)
    }
}
