#!/bin/sh
set -e
mkdir -p /app/service/bin /app/service/keys/old /app/service/conf
cd /app/service
printf '#!/bin/sh\necho start\n' >bin/start
printf '#!/usr/bin/env python3\nprint("stop")\n' >bin/stop
printf 'how to start\n' >bin/readme
printf 'private\n' >keys/id
printf 'public\n' >keys/id.pub
printf 'private, once\n' >'keys/old/id 1'
printf 'public, once\n' >'keys/old/id 1.pub'
printf 'port = 80\n' >conf/service.conf
printf 'x = 1\n#!no\n' >conf/extra.conf
ln -s ../conf/service.conf bin/conf
ln -s /etc/passwd conf/users
chmod 777 bin/start keys/id keys/old
chmod 644 bin/stop keys/old/*
chmod 666 conf/*.conf
chmod 700 conf
