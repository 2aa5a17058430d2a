//! A server of its own for a test, and plain HTTP/1.1 to it: one connection a request, bytes as they are, so that nothing is tidied up on the way.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::Value;

use crate::support::program::{DEADLINE, Running, Workshop};

/// A token that may only look, and one that may operate.
pub const READ: &str = "0123456789abcdef0123456789abcdef-look";
pub const OPERATE: &str = "0123456789abcdef0123456789abcdef-work";

/// `tombolo serve` of the folder's bucket.
pub struct Server {
    pub process: Running,
    /// Where it listens.
    pub address: String,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// It is a problem with this status and field; what was expected and found there.
    pub fn problem(&self, status: u16, field: &str) -> (String, String) {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        let error = self.json()["error"].clone();
        assert!(error["what"].as_str().is_some_and(|what| !what.is_empty()), "{error}");
        assert_eq!(error["field"].as_str(), Some(field), "{error}");
        let text = |name: &str| error[name].as_str().unwrap_or_else(|| panic!("{name}: {error}")).to_owned();
        (text("expected"), text("found"))
    }
}

impl Server {
    /// Starts it on a free port, with both tokens in a file, and waits until it listens.
    pub fn start(workshop: &Workshop) -> Self {
        std::fs::create_dir_all(workshop.path("bucket")).expect("a bucket");
        let tokens = workshop.path("tokens");
        std::fs::write(&tokens, format!("read board {READ}\noperate ci {OPERATE}\n")).expect("tokens");
        close(&tokens, 0o600);
        let mut process = workshop.start("serve file:bucket --listen 127.0.0.1:0 --tokens tokens");
        let address = process.until("it listens", |process| {
            let said = process.stderr();
            let (_, rest) = said.split_once(" is at http://")?;
            Some(rest.split_once("/v1")?.0.to_owned())
        });
        Self { process, address }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream
    }

    /// Sends these bytes and nothing else, and reads what comes back until the connection closes.
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("sent");
        answer(&mut stream)
    }

    pub fn request(&self, method: &str, target: &str, token: Option<&str>, headers: &str, body: &[u8]) -> Answer {
        self.raw(&request(method, target, token, headers, body))
    }

    pub fn get(&self, target: &str) -> Answer {
        self.request("GET", target, Some(READ), "", b"")
    }

    /// Uploads a component with the token that may.
    pub fn upload(&self, query: &str, wasm: &[u8]) -> Answer {
        self.request("PUT", &format!("/v1/policies{query}"), Some(OPERATE), "Content-Type: application/wasm\r\n", wasm)
    }
}

pub fn request(method: &str, target: &str, token: Option<&str>, headers: &str, body: &[u8]) -> Vec<u8> {
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{token}{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Reads an answer to the end of its connection.
pub fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A server that did not read all of a request closes with a reset, after its answer.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).expect("an ASCII head");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    Answer { status, headers: lines.filter_map(header).collect(), body: bytes[end + 4..].to_vec() }
}

/// Sets who may read a file.
pub fn close(file: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).expect("a file of our own");
}
