//! Hosts as people and launchers write them.

use std::net::Ipv6Addr;

/// Returns a name or an address as it is without brackets; `None` if it is neither, as with a port in it.
///
/// Brackets are for addresses of IPv6 alone, which may end with the number of a network interface (`fe80::1%2`).
pub(crate) fn host(text: &str) -> Option<&str> {
    let inside = text
        .strip_prefix('[')
        .map(|rest| rest.strip_suffix(']').unwrap_or(""));
    match inside {
        Some(address) => is_ipv6(address).then_some(address),
        None if text.contains(':') => is_ipv6(text).then_some(text),
        None => (!text.is_empty() && !text.contains([']', '/'])).then_some(text),
    }
}

/// Returns host and port of HOST:PORT, where an address of IPv6 has brackets; `None` if it is something else.
pub(crate) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (written, port) = text.rsplit_once(':')?;
    let host = host(written)?;
    // Without brackets, the port could be the end of the address.
    if host.contains(':') && !written.starts_with('[') {
        return None;
    }
    Some((host, port.parse().ok()?))
}

/// Returns HOST:PORT, as [`host_and_port`] reads it.
pub(crate) fn joined(host: &str, port: impl std::fmt::Display) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

fn is_ipv6(text: &str) -> bool {
    let (address, interface) = match text.split_once('%') {
        Some((address, interface)) => (address, interface.parse::<u32>().is_ok()),
        None => (text, true),
    };
    interface && address.parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_with_and_without_brackets_and_ports_are_none_of_them() {
        for (text, expected) in [
            ("node7", Some("node7")),
            ("10.0.0.7", Some("10.0.0.7")),
            ("::1", Some("::1")),
            ("[fe80::1]", Some("fe80::1")),
            ("[fe80::1%2]", Some("fe80::1%2")),
            ("fe80::1%eth0", None),
            ("", None),
            ("[]", None),
            ("[n0]", None),
            ("[[::1]]", None),
            ("[::1", None),
            ("::1]", None),
            ("n0]", None),
            ("n0:29500", None),
            ("[n0:29500]", None),
            ("[::1]:29500", None),
            ("tcp://n0", None),
        ] {
            assert_eq!(host(text), expected, "{text}");
        }
    }

    #[test]
    fn a_host_and_its_port_come_back() {
        for (text, expected) in [
            ("node7:29500", Some(("node7", 29500))),
            ("[::1]:7", Some(("::1", 7))),
            ("127.0.0.1:0", Some(("127.0.0.1", 0))),
            ("::1:7", None),
            ("node7", None),
            (":7", None),
            ("node7:", None),
            ("node7:65536", None),
            ("[node7]:7", None),
            ("[node7:7]:7", None),
        ] {
            let found = host_and_port(text);
            assert_eq!(found, expected, "{text}");
            if let Some((host, port)) = found {
                assert_eq!(joined(host, port), text);
            }
        }
    }
}
