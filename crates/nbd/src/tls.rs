//! TLS for connections: certificates, and the upgrade that `STARTTLS` asks for.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig, crypto::ring};

/// Why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be read.
    #[error("cannot read {}: {source}; name a PEM file with {wanted}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Its expected content.
        wanted: &'static str,
        /// What went wrong.
        source: pem::Error,
    },
    /// Certificate and key do not belong together, or one of them is of an unknown kind.
    #[error("the certificate and key cannot be used together: {0}")]
    Certificate(#[source] rustls::Error),
    /// The certificate authorities for clients cannot be used.
    #[error("the client authorities cannot be used: {0}")]
    ClientAuthority(#[source] VerifierBuilderError),
    /// The library refused its own defaults.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[source] rustls::Error),
}

/// The TLS configuration of a listener.
#[derive(Clone)]
pub struct TlsConfig {
    acceptor: TlsAcceptor,
    required: bool,
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").field("required", &self.required).finish_non_exhaustive()
    }
}

impl TlsConfig {
    /// TLS 1.2 and 1.3 with the certificate chain and key in two PEM files. With `client_ca` a
    /// client must show a certificate that one of these authorities signed. With `required` a
    /// client must start TLS before it learns anything; otherwise it may.
    ///
    /// # Errors
    /// A file cannot be read, or certificate and key do not belong together.
    pub fn from_pem_files(
        certificate: &Path,
        key: &Path,
        client_ca: Option<&Path>,
        required: bool,
    ) -> Result<TlsConfig, TlsError> {
        let chain = certificates(certificate)?;
        let wanted = "a private key";
        let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Pem {
            path: key.to_owned(),
            wanted,
            source,
        })?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(TlsError::Certificate)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(TlsError::ClientAuthority)?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(TlsError::Certificate)?;
        Ok(TlsConfig { acceptor: TlsAcceptor::from(Arc::new(config)), required })
    }

    /// Whether a client must start TLS.
    pub fn is_required(&self) -> bool {
        self.required
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wanted = "certificates";
    let fail = |source| TlsError::Pem { path: path.to_owned(), wanted, source };
    let chain = CertificateDer::pem_file_iter(path)
        .map_err(fail)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(fail)?;
    if chain.is_empty() { Err(fail(pem::Error::NoItemsFound)) } else { Ok(chain) }
}
