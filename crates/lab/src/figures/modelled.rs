//! The tables of cells on modelled devices: one table for each device, with a row for each
//! repetition of a cell.

use super::table::{Table, figure};
use crate::figures::row::Row;

/// A table for each device; none if nothing ran on one.
#[must_use]
pub fn tables(rows: &[Row]) -> Vec<Table> {
    let mut devices: Vec<&str> = Vec::new();
    for on in rows.iter().filter_map(|row| row.modelled.as_ref()) {
        if !devices.contains(&on.device.as_str()) {
            devices.push(&on.device);
        }
    }
    devices.into_iter().map(|device| table(rows, device)).collect()
}

fn table(rows: &[Row], device: &str) -> Table {
    let heads = [
        "job",
        "policy",
        "workers",
        "MiB/s",
        "IOPS",
        "mean us",
        "stdev us",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "p99.99 us",
        "max us",
        "write amplification",
        "erasures of a block",
        "metadata reads/op",
        "most an op",
        "extents/file",
    ];
    let mut table = Table::new(format!("on {device}, in modelled time"), heads).with_keys(3);
    for row in rows {
        let Some(on) = row.modelled.as_ref().filter(|on| on.device == device) else { continue };
        table.push([
            on.job.clone(),
            row.policy.clone(),
            row.workers.to_string(),
            format!("{:.0}", row.bw_mib_s),
            figure(row.ops_per_s),
            format!("{:.2}", row.lat_us_mean),
            format!("{:.2}", on.lat_us_stdev),
            format!("{:.2}", row.lat_us_p50),
            format!("{:.2}", row.lat_us_p99),
            format!("{:.2}", on.lat_us_p999),
            format!("{:.2}", row.lat_us_p9999),
            format!("{:.0}", row.lat_us_max),
            on.write_amplification.map_or("-".to_owned(), |factor| format!("{factor:.3}")),
            on.wear_spread.map_or("-".to_owned(), |(least, most)| format!("{least}-{most}")),
            format!("{:.5}", on.meta_reads_mean),
            on.meta_reads_max.to_string(),
            figure(row.extents_per_file),
        ]);
    }
    table.note(
        "Times are those of a device model and of a processor that needs 1.5 us for an operation and copies 8 GB a second; workers take \
         turns in one thread, so nobody waits for a lock. Figures repeat to the byte.",
    );
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::OnDevice;
    use crate::figures::summary::tests::row;
    use crate::metered::MetadataReads;

    #[test]
    fn a_device_has_a_table() {
        let on = |device: &str| OnDevice {
            device: device.to_owned(),
            job: "smallfiles".to_owned(),
            lat_us_stdev: 3.0,
            lat_us_p999: 4.0,
            requests: 5,
            write_amplification: (device == "ftl").then_some(1.5),
            wear_spread: (device == "ftl").then_some((1, 6)),
            meta_reads_mean: 0.25,
            meta_reads_max: 7,
            meta_reads: MetadataReads::default(),
        };
        let of = |device: &str| Row { modelled: Some(on(device)), ..row("yard", 2, 6000.0) };
        let tables = tables(&[of("hdd"), row("yard", 1, 1.0), of("ftl")]);
        assert_eq!(tables.len(), 2);
        let hdd = [
            "smallfiles",
            "yard",
            "2",
            "1",
            "6000",
            "0.50",
            "3.00",
            "0.40",
            "2.00",
            "4.00",
            "9.00",
            "50",
            "-",
            "-",
            "0.25000",
            "7",
            "1.50",
        ];
        assert_eq!(tables[0].rows, [hdd.map(str::to_owned)]);
        assert_eq!(tables[1].rows[0][12..14], ["1.500", "1-6"]);
        assert!(self::tables(&[row("yard", 1, 1.0)]).is_empty());
    }
}
