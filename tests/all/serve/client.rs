//! A server of the built binary, and an HTTP/1.1 client of few lines.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

/// A running `engine serve`; ends with the value.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts one on a free port and waits for its model.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_engine"))
            .args(["serve", "--port", "0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = log.next().expect("the server ended").unwrap();
            if let Some((_, address)) = line.split_once("serving on http://") {
                break address.parse().unwrap();
            }
        };
        // What it says later is read, so that it can go on saying it.
        std::thread::spawn(move || log.for_each(drop));
        let server = Self { child, address };
        while server.get("/health").status != 200 {
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// Asks it to end, as the system does, and waits until it has.
    pub(crate) fn end(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        Connection { stream: BufReader::new(stream) }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.connect().send("GET", path, &[], b"")
    }

    /// The answer to a JSON body on a connection of its own.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.connect().post(path, body)
    }

    /// The JSON answer to a request that succeeds.
    #[track_caller]
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{body}: {}", response.body);
        response.json()
    }

    /// The chunks of a stream that ends as it should.
    #[track_caller]
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = self.post(path, &body);
        assert_eq!(response.status, 200, "{}", response.body);
        let mut events = response.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", response.body);
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Waits until something is so.
    #[track_caller]
    pub(crate) fn eventually(&self, is: impl Fn() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < Duration::from_secs(30), "it never came to pass");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Slots with a request.
    pub(crate) fn busy(&self) -> usize {
        let slots = self.get("/slots").json();
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that is kept alive.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

/// What the server has answered.
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Lower-case names.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Connection {
    /// Sends a request and does not wait.
    pub(crate) fn write(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        let given = |name| headers.iter().any(|header| header.starts_with(name));
        if !given("Host") {
            head += "Host: localhost\r\n";
        }
        if !given("Transfer-Encoding") {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        headers.iter().for_each(|header| head += &format!("{header}\r\n"));
        let stream = self.stream.get_mut();
        stream.write_all(&[head.as_bytes(), b"\r\n", body].concat()).unwrap();
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &[u8],
    ) -> Response {
        self.write(method, path, headers, body);
        self.read()
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Response {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub(crate) fn post_bytes(&mut self, path: &str, body: &[u8]) -> Response {
        self.send("POST", path, &["Content-Type: application/json"], body)
    }

    /// Reads up to some bytes of whatever comes.
    pub(crate) fn read_some(&mut self, bytes: usize) -> String {
        let mut buffer = vec![0; bytes];
        let n = self.stream.read(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn read(&mut self) -> Response {
        let status = self.line();
        let status = status.split(' ').nth(1).unwrap_or_else(|| panic!("{status:?}"));
        let status = status.parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: String::new() };
        let mut body = Vec::new();
        if response.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line(), 16).unwrap();
                let start = body.len();
                body.resize(start + size, 0);
                self.stream.read_exact(&mut body[start..]).unwrap();
                self.line();
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = response.header("content-length") {
            body.resize(length.parse().unwrap(), 0);
            self.stream.read_exact(&mut body).unwrap();
        }
        response.body = String::from_utf8(body).unwrap();
        response
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    /// The data of server-sent events.
    pub(crate) fn events(&self) -> Vec<String> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(str::to_owned).collect()
    }
}
