# docker build -t vidprep . && docker run --rm vidprep doctor
# docker run --rm --shm-size 2g -v /data:/data vidprep transcode /data/raw /data/ready --fps 15 --short-side 240
FROM python:3.13-slim
COPY . /src
RUN pip install --no-cache-dir '/src[remote,report]'
WORKDIR /data
ENTRYPOINT ["vidprep"]
CMD ["doctor"]
