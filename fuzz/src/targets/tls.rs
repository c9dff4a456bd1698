//! Target for certificates.

use super::SMALL;
use crate::Target;
use stele_tls::rustls::pki_types::CertificateDer;
use stele_tls::rustls::pki_types::pem::PemObject;
use stele_tls::{
    Authority, ClientName, ClusterName, Days, Identity, NodeName, NodeRequest, UnixTime,
};

/// Creates the certificates of an authority, a node and a client.
fn certificates() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let now = UnixTime::now();
    let ca = Authority::create("fuzz", Days::OF_AUTHORITIES, now).unwrap();
    let ca = ca.write(dir.path()).unwrap();
    let authority = Authority::open(dir.path(), now).unwrap();
    let request = NodeRequest {
        cluster: ClusterName::new("prod").unwrap(),
        node: NodeName::new("n1").unwrap(),
        hosts: vec!["localhost".to_owned(), "::1".to_owned()],
    };
    let client = ClientName::new("app").unwrap();
    let node = authority.node(&request, Days::OF_LEAVES, now).unwrap();
    let client = authority.client(&client, Days::OF_LEAVES, now).unwrap();
    let written = [ca, node.write(dir.path()).unwrap(), client.write(dir.path()).unwrap()];
    written.map(|it| CertificateDer::from_pem_file(it.certificate).unwrap().to_vec()).to_vec()
}

pub(super) const CERTIFICATE: Target = Target {
    name: "certificate",
    run: |input| {
        let Ok(identity) = Identity::of_certificate(input) else { return };
        match identity {
            Identity::Node { cluster, node } => {
                assert_eq!(ClusterName::new(cluster.as_str()).unwrap(), cluster);
                assert_eq!(NodeName::new(node.as_str()).unwrap(), node);
            }
            Identity::Client(name) => {
                assert_eq!(ClientName::new(name.as_str()).unwrap(), name);
            }
        }
    },
    seeds: certificates,
    fix_checksums: None,
    bound: SMALL,
};
