//! A fault proxy before a real S3 server, for one process: plain HTTP/1.1 on 127.0.0.1, with faults that are switched while it runs.
//!
//! Requests are read as a whole and passed on byte for byte, `Host` included, which the client's signature covers: the client signs the
//! proxy's own address, and the server checks what it is given. Answers are relayed as they come. A client that speaks no pipelining sends its
//! next request once it has the whole answer, so answers need no framing; only one that is to be cut off has its head read.
//!
//! What a fault leaves behind: refused and closed before, nothing; closed after, the effect without the answer; delivered twice, the effect
//! twice and the second answer; cut off, an answer that is shorter than it says. All draws come from a seed, but which request meets which draw
//! depends on the order in which they come.

use crate::bucket::{Queue, Rate};
use crate::clock::{self, Duration};
use crate::error::{Error, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The largest head of a request or an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The largest body of a request: well above the parts in which large objects go up.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Connections at once; further ones are closed.
const CONNECTIONS_MAX: usize = 1024;
/// Bytes that are relayed at once.
const PIECE_BYTES: usize = 16 << 10;

const SLOW_DOWN: &[u8] = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n";
const TOO_LARGE: &[u8] = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// What the proxy does to what passes through it; the default is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Disturbance {
    /// Every connection is closed, and every new one.
    pub cut: bool,
    /// Bytes of requests and answers together move at this rate.
    pub rate: Option<Rate>,
    /// Time that is added to each request.
    pub latency: Duration,
    /// Share of the requests that are answered with 503 and not passed on.
    pub refused: f64,
    /// Share whose connection is closed instead of passing them on.
    pub closed_before: f64,
    /// Share that are passed on and whose connection is closed instead of answering.
    pub closed_after: f64,
    /// Share whose answer is cut off in the middle of its body, if it has one.
    pub cut_off: f64,
    /// Share that are delivered twice, one after another.
    pub doubled: f64,
}

/// A running proxy; it ends, with all its connections, when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    endpoint: String,
    desk: Arc<Desk>,
    _accepting: JoinSet<()>,
}

/// What all connections share.
#[derive(Debug)]
struct Desk {
    /// Host and port of the server.
    server: String,
    disturbance: watch::Sender<Disturbance>,
    /// The queue of the present rate.
    queue: Mutex<Option<Arc<Queue>>>,
    random: Mutex<StdRng>,
    spoilt: Mutex<BTreeMap<&'static str, u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Host and port of the server at `endpoint`, if a proxy can stand before it.
    ///
    /// # Errors
    /// Invalid: the endpoint is not plain HTTP.
    pub fn check(endpoint: &str) -> Result<String> {
        url::Url::parse(endpoint)
            .ok()
            .filter(|url| url.scheme() == "http")
            .and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)))
            .ok_or_else(|| {
                Error::invalid(format!(
                    "--endpoint: expected a server that speaks plain HTTP, such as http://127.0.0.1:9000, since a fault proxy reads what it \
                     passes on; found `{}`",
                    endpoint.escape_debug()
                ))
            })
    }

    /// Starts a proxy before the server at `endpoint`, on a free port.
    ///
    /// # Errors
    /// Invalid: the endpoint is not plain HTTP. Unavailable: there is no port.
    pub async fn start(endpoint: &str, seed: u64) -> Result<Proxy> {
        let server = Proxy::check(endpoint)?;
        let failed = |e| Error::unavailable("no port of 127.0.0.1 for a fault proxy").because(e);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed)?;
        let endpoint = format!("http://{}", listener.local_addr().map_err(failed)?);
        let desk = Arc::new(Desk {
            server,
            disturbance: watch::Sender::new(Disturbance::default()),
            queue: Mutex::new(None),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            spoilt: Mutex::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, desk.clone()));
        Ok(Proxy { endpoint, desk, _accepting: accepting })
    }

    /// Where it listens, as `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Does this from now on, to open connections as well.
    pub fn set(&self, disturbance: Disturbance) {
        *lock(&self.desk.queue) = disturbance.rate.map(|rate| Arc::new(Queue::new(rate)));
        self.desk.disturbance.send_replace(disturbance);
    }

    /// Requests and connections that were spoilt so far, by what was done to them.
    pub fn spoilt(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.desk.spoilt).clone()
    }
}

async fn accept(listener: TcpListener, desk: Arc<Desk>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors: some will be given back.
            clock::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        if connections.len() < CONNECTIONS_MAX {
            connections.spawn(connection(client, desk.clone()));
        }
    }
}

/// One connection of a client, until either side closes it or the link is cut.
async fn connection(client: TcpStream, desk: Arc<Desk>) {
    let mut disturbance = desk.disturbance.subscribe();
    tokio::select! {
        biased;
        cut = disturbance.wait_for(|d| d.cut) => {
            drop(cut);
            desk.count("connections cut");
        }
        // A connection that fails is closed, and that is all that a client is to see of it.
        _ = converse(client, &desk) => {}
    }
}

async fn converse(mut client: TcpStream, desk: &Desk) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server: Option<TcpStream> = None;
    let mut read = Vec::new();
    while let Some(request) = next_request(&mut client, &mut server, &mut read, desk).await? {
        let Some(request) = request else { return client.write_all(TOO_LARGE).await };
        let disturbance = *desk.disturbance.borrow();
        if !disturbance.latency.is_zero() {
            clock::sleep(disturbance.latency).await;
        }
        if desk.draws(disturbance.refused, "answered 503") {
            client.write_all(SLOW_DOWN).await?;
            continue;
        }
        if desk.draws(disturbance.closed_before, "closed before") {
            return Ok(());
        }
        if desk.draws(disturbance.doubled, "delivered twice") {
            let mut other = desk.connect().await?;
            other.write_all(&request).await?;
            head_of_answer(&mut other).await?;
        }
        desk.pass(request.len()).await;
        if server.is_none() {
            server = Some(desk.connect().await?);
        }
        let Some(server) = &mut server else { return Ok(()) };
        server.write_all(&request).await?;
        if desk.draws(disturbance.closed_after, "closed after") {
            head_of_answer(server).await?;
            return Ok(());
        }
        // The answer to HEAD says how long a body would be, and has none.
        if !request.starts_with(b"HEAD ") && desk.draws_quietly(disturbance.cut_off) {
            let (mut answer, head) = head_of_answer(server).await?;
            let body = length(&answer[..head]).unwrap_or(0);
            if body >= 2 {
                desk.count("answers cut off");
                answer.truncate(head + body / 2);
                client.write_all(&answer).await?;
                let mut rest = server.take((head + body / 2 - answer.len()) as u64);
                tokio::io::copy(&mut rest, &mut client).await?;
                return Ok(());
            }
            client.write_all(&answer).await?;
        }
    }
    Ok(())
}

/// The next request, head and body, while what the server still sends is relayed. None: a side has closed. None within: it is too large.
async fn next_request(
    client: &mut TcpStream,
    server: &mut Option<TcpStream>,
    read: &mut Vec<u8>,
    desk: &Desk,
) -> io::Result<Option<Option<Vec<u8>>>> {
    let mut needed = None;
    loop {
        if needed.is_none()
            && let Some(head) = head_end(read)
        {
            let body = length(&read[..head]).unwrap_or(0);
            // No client of ours sends chunks of unknown number, or waits for leave to send.
            if body > BODY_BYTES_MAX
                || ["transfer-encoding", "expect"].iter().any(|h| field(&read[..head], h).is_some())
            {
                return Ok(Some(None));
            }
            needed = Some(head + body);
        }
        match needed {
            Some(needed) if read.len() >= needed => {
                let rest = read.split_off(needed);
                return Ok(Some(Some(std::mem::replace(read, rest))));
            }
            None if read.len() > HEAD_BYTES_MAX => return Ok(Some(None)),
            _ => {}
        }
        let mut piece = [0u8; PIECE_BYTES];
        let answer = async {
            match server {
                Some(server) => server.read(&mut piece).await,
                None => std::future::pending().await,
            }
        };
        let mut asked = [0u8; PIECE_BYTES];
        tokio::select! {
            biased;
            bytes = answer => {
                let bytes = bytes?;
                if bytes == 0 {
                    return Ok(None);
                }
                desk.pass(bytes).await;
                client.write_all(&piece[..bytes]).await?;
            }
            bytes = client.read(&mut asked) => {
                let bytes = bytes?;
                if bytes == 0 {
                    return Ok(None);
                }
                read.extend_from_slice(&asked[..bytes]);
            }
        }
    }
}

/// Reads the head of an answer and whatever comes with it; the second is where the head ends.
async fn head_of_answer(server: &mut TcpStream) -> io::Result<(Vec<u8>, usize)> {
    let mut answer = Vec::new();
    loop {
        if let Some(head) = head_end(&answer) {
            return Ok((answer, head));
        }
        if server.read_buf(&mut answer).await? == 0 || answer.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Where the head ends that `bytes` begin with, blank line included.
fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// A field of a head.
fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let fields = std::str::from_utf8(head).ok()?.lines().skip(1);
    fields.filter_map(|line| line.split_once(':')).find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim())
}

fn length(head: &[u8]) -> Option<usize> {
    field(head, "content-length")?.parse().ok()
}

impl Desk {
    async fn connect(&self) -> io::Result<TcpStream> {
        let server = TcpStream::connect(&self.server).await?;
        server.set_nodelay(true)?;
        Ok(server)
    }

    async fn pass(&self, bytes: usize) {
        let queue = lock(&self.queue).clone();
        if let Some(queue) = queue {
            queue.pass(bytes, usize::MAX).await;
        }
    }

    fn draws_quietly(&self, share: f64) -> bool {
        share > 0.0 && lock(&self.random).random_bool(share.min(1.0))
    }

    fn draws(&self, share: f64, what: &'static str) -> bool {
        let drawn = self.draws_quietly(share);
        if drawn {
            self.count(what);
        }
        drawn
    }

    fn count(&self, what: &'static str) {
        *lock(&self.spoilt).entry(what).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every request with `body`, on every connection, and counts the requests that it was given.
    async fn server(body: &'static str) -> (String, Arc<Mutex<Vec<String>>>, JoinSet<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, mut tasks) = (requests.clone(), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let seen = seen.clone();
                connections.spawn(async move {
                    let mut read = Vec::new();
                    loop {
                        let head = loop {
                            if let Some(head) = head_end(&read) {
                                break head;
                            }
                            if client.read_buf(&mut read).await.unwrap_or(0) == 0 {
                                return;
                            }
                        };
                        let whole = head + length(&read[..head]).unwrap_or(0);
                        while read.len() < whole {
                            client.read_buf(&mut read).await.unwrap();
                        }
                        let rest = read.split_off(whole);
                        lock(&seen).push(String::from_utf8(std::mem::replace(&mut read, rest)).unwrap());
                        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                        client.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        (endpoint, requests, tasks)
    }

    const PUT: &str = "PUT /b/k HTTP/1.1\r\nHost: some.where:1\r\nContent-Length: 5\r\n\r\nhello";
    const GET: &str = "GET /b/k HTTP/1.1\r\nHost: some.where:1\r\n\r\n";

    /// All that comes back until the connection is closed, or as many bytes as are hoped for.
    async fn answer(client: &mut TcpStream, bytes: usize) -> String {
        let mut text = Vec::new();
        while text.len() < bytes && client.read_buf(&mut text).await.unwrap_or(0) > 0 {}
        String::from_utf8(text).unwrap()
    }

    async fn connect(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(proxy.endpoint().strip_prefix("http://").unwrap()).await.unwrap()
    }

    async fn ask(proxy: &Proxy, request: &str, bytes: usize) -> String {
        let mut client = connect(proxy).await;
        client.write_all(request.as_bytes()).await.unwrap();
        answer(&mut client, bytes).await
    }

    fn run(work: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(work);
    }

    const WORLD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nworld";

    #[test]
    fn without_faults_requests_pass_byte_for_byte_one_after_another_on_one_connection() {
        run(async {
            let (endpoint, requests, _server) = server("world").await;
            let proxy = Proxy::start(&endpoint, 0).await.unwrap();
            let mut client = connect(&proxy).await;
            for request in [PUT, GET, PUT] {
                client.write_all(request.as_bytes()).await.unwrap();
                assert_eq!(answer(&mut client, WORLD.len()).await, WORLD);
            }
            assert_eq!(*lock(&requests), [PUT, GET, PUT]);
            assert_eq!(proxy.spoilt(), BTreeMap::new());
        });
    }

    /// One fault, certain: what the client gets, how often the server was asked, and what was counted.
    fn assert_fault(disturbance: Disturbance, gets: &str, asked: usize, counted: &'static str) {
        run(async {
            let (endpoint, requests, _server) = server("world").await;
            let proxy = Proxy::start(&endpoint, 0).await.unwrap();
            proxy.set(disturbance);
            let bytes = if gets.is_empty() { 1 } else { gets.len() };
            assert_eq!(ask(&proxy, PUT, bytes).await, gets, "{counted}");
            assert_eq!(lock(&requests).len(), asked, "{counted}");
            assert_eq!(proxy.spoilt(), BTreeMap::from([(counted, 1)]));
            proxy.set(Disturbance::default());
            assert_eq!(ask(&proxy, GET, WORLD.len()).await, WORLD, "and then it is over");
        });
    }

    #[test]
    fn each_fault_does_what_it_says_and_is_over_when_it_is_switched_off() {
        let none = Disturbance::default();
        let refused = std::str::from_utf8(SLOW_DOWN).unwrap();
        assert_fault(Disturbance { refused: 1.0, ..none }, refused, 0, "answered 503");
        assert_fault(Disturbance { closed_before: 1.0, ..none }, "", 0, "closed before");
        assert_fault(Disturbance { closed_after: 1.0, ..none }, "", 1, "closed after");
        assert_fault(Disturbance { doubled: 1.0, ..none }, WORLD, 2, "delivered twice");
        assert_fault(Disturbance { cut: true, ..none }, "", 0, "connections cut");
    }

    #[test]
    fn an_answer_that_is_cut_off_ends_in_the_middle_of_its_body() {
        run(async {
            let (endpoint, _, _server) = server("a body of twenty-eight bytes").await;
            let proxy = Proxy::start(&endpoint, 0).await.unwrap();
            proxy.set(Disturbance { cut_off: 1.0, ..Disturbance::default() });
            let got = ask(&proxy, GET, 1000).await;
            assert!(got.ends_with("Content-Length: 28\r\n\r\na body of twen"), "{got}");
        });
    }

    #[test]
    fn a_cut_closes_connections_that_are_open() {
        run(async {
            let (endpoint, _, _server) = server("world").await;
            let proxy = Proxy::start(&endpoint, 0).await.unwrap();
            let mut client = connect(&proxy).await;
            client.write_all(GET.as_bytes()).await.unwrap();
            assert_eq!(answer(&mut client, WORLD.len()).await, WORLD);
            proxy.set(Disturbance { cut: true, ..Disturbance::default() });
            assert_eq!(answer(&mut client, 1).await, "", "it is closed");
        });
    }

    #[test]
    fn a_slow_link_takes_its_time() {
        run(async {
            let (endpoint, _, _server) = server("world").await;
            let proxy = Proxy::start(&endpoint, 0).await.unwrap();
            proxy.set(Disturbance { rate: Some(Rate::bytes_per_s(1e6)), ..Disturbance::default() });
            let request =
                format!("PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n{}", "x".repeat(200_000));
            let start = clock::now();
            assert_eq!(ask(&proxy, &request, WORLD.len()).await, WORLD);
            // 0.2 s, less the 10 ms by which a queue may run ahead; how much more it takes depends on the machine.
            assert!(clock::now() - start >= Duration::from_millis(180));
        });
    }

    #[test]
    fn what_it_cannot_frame_it_refuses() {
        run(async {
            let (endpoint, requests, _server) = server("world").await;
            let proxy = Proxy::start(&endpoint, 0).await.unwrap();
            let chunked = "PUT /b/k HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
            assert_eq!(ask(&proxy, chunked, 1000).await, std::str::from_utf8(TOO_LARGE).unwrap());
            assert_eq!(lock(&requests).len(), 0);
            let error = Proxy::start("https://s3.example.org", 0).await.unwrap_err().to_string();
            assert!(error.contains("plain HTTP"), "{error}");
        });
    }
}
