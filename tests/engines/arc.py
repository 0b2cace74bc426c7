"""Runs NorduGrid ARC: a computing element on loopback that executes jobs on this machine for users with a proxy certificate."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.engines import processes
from tests.engines.daemons import Engine
from tests.engines.people import Person

UNDER_WAY = ("accepting", "processing", "restarting")
"""Directories of the element with jobs that have not ended."""

SETTINGS = """\
[common]
hostname = localhost
x509_host_key = {place}/host.key
x509_host_cert = {place}/host.pem
x509_cert_dir = {place}/authorities
[authgroup:people]
subject = {subject}
[mapping]
map_to_user = people {person}:{person}
[lrms]
lrms = fork
[arex]
controldir = {place}/control
sessiondir = {place}/session
pidfile = {place}/arex.pid
logfile = {place}/arex.log
helperlog = {place}/errors.log
tmpdir = {place}/tmp
wakeupperiod = 2
[arex/ws]
wsurl = {endpoint}
pidfile = {place}/arex.pid
logfile = {place}/arex.log
[arex/ws/jobs]
allowaccess = people
[infosys]
logfile = {place}/infosys.log
[infosys/glue2]
[infosys/cluster]
[queue:fork]
"""

# What ARC's own start script would write, except for loopback and a status interval of two seconds instead of a minute.
SERVICE = """\
<?xml version="1.0"?>
<ArcConfig xmlns="http://www.nordugrid.org/schemas/ArcConfig/2007" xmlns:tcp="http://www.nordugrid.org/schemas/ArcMCCTCP/2007"
  xmlns:arex="http://www.nordugrid.org/schemas/a-rex/Config">
  <Server>
    <PidFile>{place}/arex.pid</PidFile>
    <Logger><File>{place}/arex.log</File><Level>INFO</Level></Logger>
  </Server>
  <ModuleManager><Path>/usr/lib/arc/</Path></ModuleManager>
  <Plugins><Name>mcctcp</Name></Plugins>
  <Plugins><Name>mcctls</Name></Plugins>
  <Plugins><Name>mcchttp</Name></Plugins>
  <Plugins><Name>mccsoap</Name></Plugins>
  <Plugins><Name>arex</Name></Plugins>
  <Plugins><Name>identitymap</Name></Plugins>
  <Plugins><Name>arcshc</Name></Plugins>
  <Plugins><Name>arcshclegacy</Name></Plugins>
  <Chain>
    <Component name="tcp.service" id="tcp">
      <next id="tls"/>
      <tcp:Listen><tcp:Interface>127.0.0.1</tcp:Interface><tcp:Port>{port}</tcp:Port></tcp:Listen>
    </Component>
    <Component name="tls.service" id="tls">
      <next id="http"/>
      <KeyPath>{place}/host.key</KeyPath>
      <CertificatePath>{place}/host.pem</CertificatePath>
      <CACertificatesDir>{place}/authorities</CACertificatesDir>
      <ClientAuthn>false</ClientAuthn>
    </Component>
    <Component name="http.service" id="http">
      <next id="soap">POST</next>
      <next id="plexer"/>
      <SecHandler name="arclegacy.handler" event="incoming"><ConfigFile>{place}/arex.cfg</ConfigFile></SecHandler>
    </Component>
    <Component name="soap.service" id="soap">
      <next id="plexer"/>
      <ContinueNonSOAP>true</ContinueNonSOAP>
    </Component>
    <Plexer name="plexer.service" id="plexer"><next id="a-rex">^/arex</next></Plexer>
    <Service name="a-rex" id="a-rex">
      <SecHandler name="arclegacy.map" event="incoming">
        <ConfigBlock><ConfigFile>{place}/arex.cfg</ConfigFile><BlockName>mapping</BlockName></ConfigBlock>
      </SecHandler>
      <arex:endpoint>{endpoint}</arex:endpoint>
      <arex:gmconfig>{place}/arex.cfg</arex:gmconfig>
      <arex:InfoproviderWakeupPeriod>20</arex:InfoproviderWakeupPeriod>
    </Service>
  </Chain>
</ArcConfig>
"""


@dataclass
class ARC(Engine):
    """An ARC computing element. Jobs run as the user whose certificate it knows, without a limit on their number."""

    needs = "arc"

    person: Person

    @property
    def environment(self) -> dict[str, str]:
        """Variables that tell a user's programs where certificate authorities and proxy are."""
        own = {"X509_CERT_DIR": str(self.place / "authorities"), "X509_USER_PROXY": str(self.person.home / "proxy")}
        return super().environment | own

    @property
    def endpoint(self) -> str:
        return f"https://localhost:{self.ports[0]}/arex"

    def make_proxy(self, lasts_s: int = 43200) -> None:
        """Create a proxy as the user, from the certificate in its usual place."""
        made = self.person.run("arcproxy", "-P", "proxy", "-c", f"validityPeriod={lasts_s}", environment=self.environment)
        if made.returncode:
            raise processes.EngineFailed(f"arcproxy: {made.stderr or made.stdout}")

    def kill_daemon(self) -> None:
        self._kill("arched")

    def restart_daemon(self) -> None:
        self._start_arched()

    def leftovers(self) -> list[str]:
        return sorted(file.name.split(".")[1] for name in UNDER_WAY for file in (self.place / "control" / name).glob("job.*.status"))

    def _set_up(self) -> None:
        self.ports = processes.free_ports(1)
        for folder in ("control", "session", "tmp", "authorities"):
            (self.place / folder).mkdir()
        for folder in ("session", "tmp"):
            (self.place / folder).chmod(0o1777)
        self._make_certificates()
        blanks = {"place": self.place, "port": self.ports[0], "endpoint": self.endpoint}
        person = {"person": self.person.name, "subject": f"/DC=test/CN={self.person.name}"}
        (self.place / "arc.conf").write_text(SETTINGS.format(**blanks, **person))
        (self.place / "arex.xml").write_text(SERVICE.format(**blanks))
        parser = "/usr/lib/arc/arcconfig-parser"
        self.ask(parser, "--config", str(self.place / "arc.conf"), "--runconfig", str(self.place / "arex.cfg"), "--save")
        self._start_arched()

    def _start_arched(self) -> None:
        own = {"ARC_LOCATION": "/usr", "ARC_CONFIG": str(self.place / "arc.conf"), "TMPDIR": str(self.place / "tmp")}
        own |= {"X509_USER_CERT": str(self.place / "host.pem"), "X509_USER_KEY": str(self.place / "host.key")}
        self._run("arched", "arched", "-f", "-c", str(self.place / "arex.xml"), **own)
        self._wait_until_up("arched listens", lambda: processes.is_listening(self.ports[0]))

    def _make_certificates(self) -> None:
        """Create an authority and the certificates of the element and the user."""
        (self.place / "request").write_text("[req]\ndistinguished_name = name\n[name]\n")
        authority = self.place / "authorities" / "test.pem"
        issuer = ("-CA", str(authority), "-CAkey", str(self.place / "authority.key"))
        self._make_certificate(authority, self.place / "authority.key", "Test authority", "-addext", "basicConstraints=critical,CA:TRUE")
        self.ask("openssl", "rehash", str(authority.parent))
        self._make_certificate(
            self.place / "host.pem", self.place / "host.key", "localhost", *issuer, "-addext", "subjectAltName=DNS:localhost"
        )
        folder = self.person.home / ".globus"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._make_certificate(folder / "usercert.pem", folder / "userkey.pem", self.person.name, *issuer)
        (folder / "userkey.pem").chmod(0o400)
        for path in (folder, *folder.iterdir()):
            os.chown(path, self.person.uid, self.person.gid)

    def _make_certificate(self, certificate: Path, key: Path, name: str, *options: str) -> None:
        request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config", str(self.place / "request")]
        subject = ["-subj", f"/DC=test/CN={name}", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*request, *subject, *options], check=True, capture_output=True)
