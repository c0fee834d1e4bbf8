"""Causes outside the cluster: services that the script asks for data, models or storage."""

from __future__ import annotations

from ftslurm.failures.catalogue.cause import POINTLESS, PRIMARY, Cause
from ftslurm.failures.predicates import client, either, exception

ROWS: tuple[Cause, ...] = (
    Cause("service-refused", "an external service refused access", PRIMARY,
          either(exception("PermissionError", text=r"\b40[13] (Forbidden|Unauthorized)|\b(s3|gs|abfss?|https?)://"),
                 client(r"\b(401|403)\b.{0,40}(Client Error|Unauthorized|Forbidden)"
                 r"|([Ee]rror|status|code)\W{1,3}(401|403)\b"
                 r"|[Pp]ermission denied|PERMISSION_(ERROR|DENIED)|invalid API key|API key .{0,30}(not|invalid)"
                 r"|[Gg]ated ?[Rr]epo|AccessDenied"
                 r"|InvalidAccessKey"
                 r"|SignatureDoesNotMatch|ExpiredToken|NoCredentials|Invalid username or password"
                 r"|AuthenticationError")),
          "Check the address, and the token or key in the job's environment if it needs one: a restart renews none.",
          not_for="a service that is busy", restart=POINTLESS, behind=True),
    Cause("service-busy", "an external service was busy or failed", PRIMARY,
          either(client(r"\b(429|50[0234])\b.{0,3}(Client|Server) Error|(status( code)?:? ?|HTTP Error )"
                        r"(429|50[0234])\b|Too Many Requests|SlowDown|[Rr]educe your request rate|Throttl"
                        r"|RequestTimeout|InternalError|Service ?Unavailable|Bad Gateway|RESOURCE_EXHAUSTED"
                        r"|UNAVAILABLE"),
                 exception("RuntimeError", text=r"\AHTTP Error (429|50\d) thrown while requesting")),
          "Wait and try again; let one rank per node download, or use a local copy.",
          not_for="a request that is wrong", behind=True),
    Cause("service-name", "a host name could not be resolved", PRIMARY,
          either(exception("gaierror", "NameResolutionError"),
                 client(r"NameResolutionError|[Nn]ame or service not known|failure in name resolution"
                        r"|getaddrinfo failed")),
          "Often a compute node without Internet, or an overloaded name server: prepare the data before, or try again.",
          not_for="the name of a node of the job", behind=True),
    Cause("service-offline", "a file is not in the local cache, and the hub is not reached", PRIMARY,
          either(exception("LocalEntryNotFoundError", "OfflineModeIsEnabled"),
                 exception("OSError", text=r"couldn't connect to 'https://huggingface.co'"
                                           r"|Can't load .{0,200}'https://huggingface.co")),
          "Download it on a node with Internet into HF_HOME, then HF_HUB_OFFLINE=1 for the job.",
          not_for="a wrong path, or a hub that refused", behind=True, vague=True),
    Cause("service-tls", "no secure connection to an external service", PRIMARY,
          client(r"\[SSL: (?!UNEXPECTED_EOF)\w+\]|CERTIFICATE_VERIFY_FAILED"),
          "Check scheme and port of the address, the certificates (SSL_CERT_FILE), and the proxy.",
          not_for="a connection that broke", restart=POINTLESS, behind=True),
    Cause("service-unreachable", "an external service was not reached", PRIMARY,
          client(r"Connect(ion)?\w*(Error|Timeout)|Read(Timeout|Error)|Timeout|MaxRetryError|URLError|ProxyError"
                 r"|SSLError|CommError"
                 r"|ProtocolError|ServerDisconnected|Connection (refused|reset|aborted)"),
          "Wait and try again; if never reached from compute nodes, set a proxy or work offline (WANDB_MODE=offline).",
          not_for="a connection between ranks", behind=True),
)  # fmt: skip
