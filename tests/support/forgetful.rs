//! An S3 server in this process that forgets the condition of every put, as Garage and s3rver do: whatever it is asked to create, it
//! overwrites. It checks no signature and knows one bucket.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

/// Objects by key.
type Objects = BTreeMap<String, Vec<u8>>;

/// The only bucket.
pub const BUCKET: &str = "forgetful";

/// A running server; its threads end with the test process.
pub struct Forgetful {
    /// Where it is, as `http://127.0.0.1:PORT`.
    pub endpoint: String,
    objects: Arc<Mutex<Objects>>,
}

impl Forgetful {
    /// Starts a server that holds every file below `folder`.
    pub fn serving(folder: &Path) -> Self {
        let mut objects = Objects::new();
        load(folder, folder, &mut objects);
        let objects = Arc::new(Mutex::new(objects));
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = objects.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let objects = shared.clone();
                // A client that goes away in the middle is no failure of the test.
                thread::spawn(move || serve(connection, &objects));
            }
        });
        Self { endpoint, objects }
    }

    /// What it holds now.
    pub fn objects(&self) -> Objects {
        self.objects.lock().expect("nobody panics with it").clone()
    }
}

fn load(root: &Path, folder: &Path, objects: &mut Objects) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            load(root, &path, objects);
        } else {
            let key = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
            objects.insert(key, fs::read(&path).expect("a file"));
        }
    }
}

/// Answers one request after another, until the client closes.
fn serve(mut connection: TcpStream, objects: &Mutex<Objects>) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut bytes = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                bytes = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; bytes];
        reader.read_exact(&mut body)?;
        let mut words = first.split_whitespace();
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (status, answer) = answer(method, target, body, &mut objects.lock().expect("nobody panics with it"));
        write!(
            connection,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n",
            answer.len()
        )?;
        if method != "HEAD" {
            connection.write_all(&answer)?;
        }
    }
}

fn answer(method: &str, target: &str, body: Vec<u8>, objects: &mut Objects) -> (&'static str, Vec<u8>) {
    const OK: &str = "200 OK";
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let parameter = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| value.replace("%2F", "/"))
    };
    let key = path.trim_start_matches('/').strip_prefix(BUCKET).unwrap_or_default().trim_matches('/');
    match method {
        "HEAD" if key.is_empty() => (OK, Vec::new()),
        "GET" if key.is_empty() => {
            let prefix = parameter("prefix").unwrap_or_default();
            (OK, listing(objects, &prefix, parameter("delimiter").is_some(), &parameter("start-after")).into_bytes())
        }
        "GET" | "HEAD" => match objects.get(key) {
            Some(stored) => (OK, stored.clone()),
            None => ("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>".to_vec()),
        },
        "PUT" if query.is_empty() => {
            objects.insert(key.to_owned(), body);
            (OK, Vec::new())
        }
        "POST" if query.starts_with("delete") => {
            let text = String::from_utf8_lossy(&body).into_owned();
            let mut deleted = String::new();
            for key in text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                objects.remove(key);
                deleted.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
            }
            (OK, format!("<DeleteResult>{deleted}</DeleteResult>").into_bytes())
        }
        _ => ("501 Not Implemented", b"<Error><Code>NotImplemented</Code></Error>".to_vec()),
    }
}

fn listing(objects: &Objects, prefix: &str, folders: bool, after: &Option<String>) -> String {
    let (mut contents, mut common) = (String::new(), std::collections::BTreeSet::new());
    for (key, bytes) in objects {
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        match rest.split_once('/') {
            Some((folder, _)) if folders => {
                common.insert(format!("<CommonPrefixes><Prefix>{prefix}{folder}/</Prefix></CommonPrefixes>"));
            }
            _ if after.as_ref().is_some_and(|after| key <= after) => {}
            _ => contents.push_str(&format!(
                "<Contents><Key>{key}</Key><LastModified>1970-01-01T00:00:00.000Z</LastModified><ETag>\"1\"</ETag><Size>{}</Size></Contents>",
                bytes.len()
            )),
        }
    }
    let common: String = common.into_iter().collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>")
}
