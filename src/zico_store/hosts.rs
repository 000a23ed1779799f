//! What hosts may send again (Fressian): written when the listener stops, read when the next process starts.

use rusqlite::{Connection, TransactionBehavior, params};

use tributary_zico::agents::StoredHost;

/// Replaces what was stored before, in one transaction.
pub(super) fn store(connection: &mut Connection, hosts: &[StoredHost]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch("DELETE FROM sent_packets; DELETE FROM sent_traces;")?;
    {
        let mut packet = transaction.prepare("INSERT INTO sent_packets VALUES (?1, ?2)")?;
        let mut of_host = transaction.prepare("INSERT INTO sent_traces VALUES (?1, ?2)")?;
        for StoredHost { host, packets, traces } in hosts {
            of_host.execute(params![host, traces])?;
            for records in packets {
                packet.execute(params![host, records.as_flattened()])?;
            }
        }
    }
    transaction.commit()
}

/// What was stored last.
pub(super) fn stored(connection: &Connection) -> rusqlite::Result<Vec<StoredHost>> {
    let mut of_hosts = connection.prepare("SELECT host, traces FROM sent_traces")?;
    let mut packets = connection.prepare("SELECT records FROM sent_packets WHERE host = ?1")?;
    let hosts = of_hosts.query_map([], |row| {
        let host: String = row.get(0)?;
        let records = |row: &rusqlite::Row<'_>| Ok(row.get::<_, Vec<u8>>(0)?.as_chunks().0.to_vec());
        let packets = packets.query_map([&host], records)?.collect::<rusqlite::Result<_>>()?;
        Ok(StoredHost { host, packets, traces: row.get(1)? })
    })?;
    hosts.collect()
}
