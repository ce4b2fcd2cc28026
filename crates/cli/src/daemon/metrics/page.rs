//! The page of metrics over HTTP: one request on each connection.
//!
//! The exporter's own listener brings a whole HTTP/2 stack along, for a page of text that one program reads every few
//! seconds.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use thalweg_env::{Env, Task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Longest head of a request, bytes.
const MAX_HEAD: usize = 8 << 10;
/// Most header fields of a request.
const MAX_FIELDS: usize = 64;
/// Connections at a time; further ones are accepted when one of them has ended.
const MAX_CONNECTIONS: usize = 16;
/// Time for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after an error that accepts no connection: the next attempt would fail at once, too.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the page on `address` until the returned task is dropped.
///
/// # Errors
/// The address cannot be listened on.
pub(super) fn serve(
    env: &Env,
    address: SocketAddr,
    page: PrometheusHandle,
) -> io::Result<Task<()>> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (env, connections) = (env.clone(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    let serving = env.clone();
    Ok(env.spawn(async move {
        loop {
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
            let mut stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "no connection for metrics could be accepted");
                    serving.sleep(PAUSE).await;
                    continue;
                }
            };
            let (env, page) = (serving.clone(), page.clone());
            let answering = async move {
                // A client that goes away, or sends nothing in time, gets no page.
                let _ = env.timeout(PATIENCE, answer(&mut stream, &page)).await;
                drop(permit);
            };
            serving.spawn(answering).detach();
        }
    }))
}

async fn answer(stream: &mut TcpStream, page: &PrometheusHandle) -> io::Result<()> {
    let response = match read_method(stream).await? {
        Some(method) if method == "GET" => response("200 OK", &page.render(), true),
        Some(method) if method == "HEAD" => response("200 OK", &page.render(), false),
        Some(_) => response("405 Method Not Allowed\r\nallow: GET, HEAD", "", true),
        None => response("400 Bad Request", "", true),
    };
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

/// The method of a request; `None` if it is none. Returns when its head is whole.
async fn read_method(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => return Ok(request.method.map(str::to_owned)),
            Ok(httparse::Status::Partial) if head.len() < MAX_HEAD => {}
            Ok(httparse::Status::Partial) | Err(_) => return Ok(None),
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
}

fn response(status: &str, body: &str, has_body: bool) -> String {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    if has_body { head + body } else { head }
}
