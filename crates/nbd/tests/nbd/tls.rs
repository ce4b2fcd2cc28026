use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use thalweg_nbd::{TlsConfig, TlsError, UnixSocketOptions};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio_rustls::{TlsConnector, rustls};

use crate::Fixture;
use crate::client::{Client, READ, export_request};

const INVALID: u32 = (1 << 31) | 3;
const TLS_REQUIRED: u32 = (1 << 31) | 5;

/// PEM files under the names that libnbd looks for.
pub struct Certificates(PathBuf);

impl Certificates {
    /// An authority, a server certificate for localhost, and a client certificate.
    pub fn make(directory: &Path) -> Certificates {
        fs::create_dir_all(directory).unwrap();
        let files = Certificates(directory.to_owned());
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let certificate = authority.self_signed(&authority_key).unwrap();
        fs::write(files.path("ca-cert"), certificate.pem()).unwrap();
        let issuer = Issuer::new(authority, authority_key);
        for who in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            fs::write(files.path(&format!("{who}-cert")), certificate.pem()).unwrap();
            fs::write(files.path(&format!("{who}-key")), key.serialize_pem()).unwrap();
        }
        files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.pem"))
    }

    pub fn server(&self, mutual: bool, required: bool) -> TlsConfig {
        let authority = mutual.then(|| self.path("ca-cert"));
        let (certificate, key) = (self.path("server-cert"), self.path("server-key"));
        TlsConfig::from_pem_files(&certificate, &key, authority.as_deref(), required).unwrap()
    }

    fn client(&self, with_certificate: bool) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca-cert")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = if with_certificate {
            let chain = vec![CertificateDer::from_pem_file(self.path("client-cert")).unwrap()];
            let key = PrivateKeyDer::from_pem_file(self.path("client-key")).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        TlsConnector::from(Arc::new(config))
    }
}

struct Secured {
    fixture: Fixture,
    certificates: Certificates,
    socket: PathBuf,
}

impl Secured {
    fn new(mutual: bool, required: bool) -> Secured {
        let fixture = Fixture::new();
        let certificates = Certificates::make(&fixture.directory.path().join("pki"));
        let socket = fixture.directory.path().join("tls.sock");
        let tls = certificates.server(mutual, required);
        fixture.server.listen_unix(&socket, UnixSocketOptions::default(), Some(tls)).unwrap();
        Secured { fixture, certificates, socket }
    }

    async fn greeted(&self) -> Client {
        let mut client = Client::connect(&self.socket).await;
        client.greet(3).await;
        client
    }

    async fn upgrade(
        &self,
        mut client: Client,
        with_certificate: bool,
    ) -> std::io::Result<Client<TlsStream<UnixStream>>> {
        assert_eq!(client.verdict(5, &[]).await, 1);
        let name = ServerName::try_from("localhost").unwrap();
        let connector = self.certificates.client(with_certificate);
        connector.connect(name, client.stream).await.map(Client::on)
    }
}

#[tokio::test]
async fn a_required_upgrade_comes_before_everything_else() {
    let secured = Secured::new(false, true);
    let mut client = secured.greeted().await;
    for code in [3, 6, 7, 8, 9, 10, 99] {
        assert_eq!(client.verdict(code, &export_request("disk", &[])).await, TLS_REQUIRED);
    }
    assert_eq!(client.verdict(5, b"x").await, INVALID);
    let mut client = secured.upgrade(client, false).await.unwrap();
    assert_eq!(client.verdict(5, &[]).await, INVALID, "twice");
    client.negotiate_structured("disk").await;
    client.go("disk").await;
    let data: Vec<u8> = (0..1_000_448u32).map(|at| (at % 249) as u8).collect();
    assert_eq!(client.write(0, 0, &data).await, 0);
    assert!(client.read(0, 0, data.len() as u32).await == data);
    let mut plain = secured.greeted().await;
    plain.send_option(1, b"disk").await;
    assert!(plain.is_closed().await);
    let mut aborting = secured.greeted().await;
    assert_eq!(aborting.verdict(2, &[]).await, 1);
}

#[tokio::test]
async fn an_offered_upgrade_is_optional_and_forgets_what_came_before() {
    let secured = Secured::new(false, false);
    let mut plain = secured.greeted().await;
    plain.go("disk").await;
    assert_eq!(plain.call(3, 0, 0, 0).await, 0);
    let mut client = secured.greeted().await;
    client.negotiate_structured("disk").await;
    let mut client = secured.upgrade(client, false).await.unwrap();
    client.go("disk").await;
    let cookie = client.request(READ, 0, 0, 512).await;
    let reply = client.reply().await;
    assert_eq!(reply, crate::client::Reply::Simple { error: 0, cookie }, "structured is forgotten");
}

#[tokio::test]
async fn plain_bytes_behind_the_upgrade_are_not_taken_for_tls() {
    let secured = Secured::new(false, false);
    let mut client = secured.greeted().await;
    // An attacker slips an option in before the session is protected.
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&[0, 0, 0, 5, 0, 0, 0, 0]);
    bytes.extend_from_slice(b"IHAVEOPT");
    bytes.extend_from_slice(&[0, 0, 0, 8, 0, 0, 0, 0]);
    client.send(&bytes).await;
    assert_eq!(client.option_reply(5).await.0, 1);
    let mut rest = Vec::new();
    let _ = client.stream.shutdown().await;
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut rest).await;
    assert!(!rest.windows(8).any(|window| window == [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]));
    crate::eventually(|| secured.fixture.server.stats().handshakes_failed.get() == 1).await;
}

#[tokio::test]
async fn with_an_authority_for_clients_a_certificate_is_needed() {
    let secured = Secured::new(true, true);
    let client = secured.greeted().await;
    let mut client = secured.upgrade(client, true).await.unwrap();
    client.go("disk").await;
    assert_eq!(client.call(3, 0, 0, 0).await, 0);
    let client = secured.greeted().await;
    // TLS 1.3 lets the client finish before the server has judged it.
    if let Ok(mut client) = secured.upgrade(client, false).await {
        let _ = client.stream.write_all(b"IHAVEOPT").await;
        assert!(client.is_closed().await);
    }
    crate::eventually(|| secured.fixture.server.stats().handshakes_failed.get() == 1).await;
}

#[test]
fn unusable_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let files = Certificates::make(directory.path());
    let (certificate, key) = (files.path("server-cert"), files.path("server-key"));
    let missing = TlsConfig::from_pem_files(&files.path("none"), &key, None, true);
    assert!(missing.unwrap_err().to_string().contains("none.pem"));
    let swapped = TlsConfig::from_pem_files(&key, &certificate, None, true);
    assert!(matches!(swapped, Err(TlsError::Pem { wanted: "certificates", .. })));
    let foreign = TlsConfig::from_pem_files(&certificate, &files.path("client-key"), None, true);
    assert!(matches!(foreign, Err(TlsError::Certificate(rustls::Error::InconsistentKeys(_)))));
}
