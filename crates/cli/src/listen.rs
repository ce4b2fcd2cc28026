//! Where a server listens: `HOST:PORT`, a name or an address.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// The error for a text that is not an address.
const EXPECTED: &str = "expected HOST:PORT, such as localhost:10809, 0.0.0.0:10809 or [::]:10809";

/// A host and a port as the user wrote them, with the host's addresses from this machine's resolver.
#[derive(Clone, Debug)]
pub(crate) struct ListenAddress {
    text: String,
    addresses: Vec<SocketAddr>,
}

impl ListenAddress {
    /// Opens every address of the host, all with one port. One of a family that this machine lacks, as `is_absent`
    /// says, is skipped if another one works.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) async fn open_all<T, E>(
        &self,
        mut open: impl AsyncFnMut(SocketAddr) -> Result<(SocketAddr, T), E>,
        is_absent: impl Fn(&E) -> bool,
    ) -> Result<Vec<(SocketAddr, T)>, E> {
        let (mut opened, mut refused) = (Vec::<(SocketAddr, T)>::new(), None);
        for address in &self.addresses {
            let mut address = *address;
            if let (0, Some((first, _))) = (address.port(), opened.first()) {
                address.set_port(first.port());
            }
            match open(address).await {
                Ok(one) => opened.push(one),
                Err(error) if is_absent(&error) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        match (opened.is_empty(), refused) {
            (true, Some(error)) => Err(error),
            _ => Ok(opened),
        }
    }

    /// The first address of the host.
    pub(crate) fn first(&self) -> SocketAddr {
        self.addresses[0]
    }
}

/// Whether a text has the form of a host and a port; an IPv6 address is in brackets.
fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_plain = !host.is_empty() && !host.contains(':');
        port.parse::<u16>().is_ok() && (is_plain || host.starts_with('['))
    })
}

/// Whether an error says that this machine does not have such an address.
pub(crate) fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT))
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAddress, String> {
        if !is_host_and_port(text) {
            return Err(EXPECTED.to_owned());
        }
        let found =
            text.to_socket_addrs().map_err(|error| format!("cannot resolve it: {error}"))?;
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in found {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        match addresses.is_empty() {
            true => Err("the host has no address".to_owned()),
            false => Ok(ListenAddress { text: text.to_owned(), addresses }),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_accepted() {
        let parse = |text: &str| ListenAddress::from_str(text);
        assert_eq!(parse("127.0.0.1:80").unwrap().addresses, ["127.0.0.1:80".parse().unwrap()]);
        assert_eq!(parse("[::1]:80").unwrap().first(), "[::1]:80".parse().unwrap());
        let local = parse("localhost:80").unwrap();
        assert!(local.addresses.iter().all(|address| address.ip().is_loopback()));
        assert_eq!(local.to_string(), "localhost:80");
        let wrong =
            ["", "localhost", ":80", "localhost:", "localhost:http", "::1:80", "1.2.3.4:70000"];
        for text in wrong {
            assert!(parse(text).unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }
}
