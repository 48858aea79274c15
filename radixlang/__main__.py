"""`python -m radixlang` is the command `radixlang`."""

from radixlang.cli.main import main

raise SystemExit(main())
