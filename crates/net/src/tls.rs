//! TLS 1.3 between peers that know each other's keys: both sides send a raw public key (RFC 7250).
//!
//! The handshake proves that the peer has its private key. Which keys are welcome is another question: a client pins the
//! server's key, and a server looks the client's key up ([`Authorized`](crate::keys::Authorized)) once the stream is open, so that it
//! can say why it refuses one, and enrol one that is new.

use std::fmt;
use std::io;
use std::sync::Arc;

use thalweg_env::connection::Stream;
use tokio_rustls::rustls::client::AlwaysResolvesClientRawPublicKeys;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use tokio_rustls::rustls::server::AlwaysResolvesServerRawPublicKeys;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::keys::{Key, PublicKey};

fn provider() -> CryptoProvider {
    tokio_rustls::rustls::crypto::ring::default_provider()
}

fn certified(key: &Key) -> io::Result<Arc<CertifiedKey>> {
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_pkcs8()));
    let signing = provider().key_provider.load_private_key(private).map_err(io::Error::other)?;
    let public = CertificateDer::from(key.public().to_spki());
    Ok(Arc::new(CertifiedKey::new(vec![public], signing)))
}

/// Accepts the keys of peers: one, or any.
struct Pinned {
    key: Option<PublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Pinned {
    fn new(key: Option<PublicKey>) -> Arc<Pinned> {
        Arc::new(Pinned { key, algorithms: provider().signature_verification_algorithms })
    }

    fn check(&self, peer: &CertificateDer<'_>) -> Result<(), Error> {
        let peer = PublicKey::from_spki(peer);
        let peer = peer.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        match self.key.is_none_or(|key| key == peer) {
            true => Ok(()),
            false => {
                Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        peer: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(peer.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

fn refuse_old_tls() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        refuse_old_tls()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        refuse_old_tls()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn peer_of(certificates: Option<&[CertificateDer<'static>]>) -> io::Result<PublicKey> {
    let key = certificates.and_then(|keys| keys.first()).and_then(|key| PublicKey::from_spki(key));
    key.ok_or_else(|| io::Error::other("the peer sent no key"))
}

/// Whether the error of a handshake says that the server has another key than the pinned one.
pub(crate) fn is_wrong_key(error: &io::Error) -> bool {
    let wrong = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
    error.get_ref().and_then(|it| it.downcast_ref::<Error>()) == Some(&wrong)
}

/// The accepting side of TLS.
#[derive(Clone)]
pub struct TlsServer {
    acceptor: TlsAcceptor,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl TlsServer {
    /// A server with this key. Any client that has a key gets through the handshake.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn new(key: &Key) -> io::Result<TlsServer> {
        let config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&tokio_rustls::rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Pinned::new(None))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified(key)?)));
        Ok(TlsServer { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Does the handshake: the stream, and the client's key, which the client has proved to have.
    ///
    /// # Errors
    /// The peer does not speak TLS 1.3, or has no key; errors of the connection.
    pub async fn accept<S: Stream>(&self, stream: S) -> io::Result<(TlsStream<S>, PublicKey)> {
        let stream = self.acceptor.accept(stream).await?;
        let peer = peer_of(stream.get_ref().1.peer_certificates())?;
        Ok((stream.into(), peer))
    }
}

/// The connecting side of TLS.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
    }
}

impl TlsClient {
    /// A client with this key that talks to the server with the key `server` and to no other; to any server if that is
    /// `None`: the caller checks its key then.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn new(key: &Key, server: Option<PublicKey>) -> io::Result<TlsClient> {
        let config = ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&tokio_rustls::rustls::version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Pinned::new(server))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                certified(key)?,
            )));
        Ok(TlsClient { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Does the handshake: the stream, and the server's key.
    ///
    /// # Errors
    /// The server has another key, or does not speak TLS 1.3; errors of the connection.
    pub async fn connect<S: Stream>(&self, stream: S) -> io::Result<(TlsStream<S>, PublicKey)> {
        // A name is not sent: keys are what counts.
        let name = ServerName::try_from("thalweg").map_err(io::Error::other)?;
        let stream = self.connector.connect(name, stream).await?;
        let server = peer_of(stream.get_ref().1.peer_certificates())?;
        Ok((stream.into(), server))
    }
}
